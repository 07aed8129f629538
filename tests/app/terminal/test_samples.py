from __future__ import annotations

from app.terminal.samples import answer_text, choose, is_due


def shown(groups):
    return [(s.label, s.prompt, s.answer.answer.text) for s in choose(1, groups)]


def test_the_group_that_differs_most_shows_its_best_and_worst(group):
    dull = group(("a", 5.0), ("b", 5.1))
    telling = group(("bad", -1.0), ("good", 1.0), ("middling", 0.0), question="What is 2 + 3?")
    assert shown([dull, telling]) == [
        ("best", "What is 2 + 3?", "good"),
        ("worst", "What is 2 + 3?", "bad"),
    ]


def test_where_all_score_alike_one_answer_is_enough(group):
    assert shown([group(("x", 0.0), ("y", 0.0))]) == [("all alike", "2 + 3?", "y")]


def test_of_equally_good_answers_another_one_is_shown_each_time(group):
    alike = group(("a", 1.0), ("b", 1.0), ("c", 0.0))
    best = [choose(update, [alike])[0].answer.answer.text for update in (1, 2, 3)]
    assert best == ["b", "a", "b"]


def test_where_each_prompt_has_one_answer_the_best_and_the_worst_are_of_the_update(group):
    answers = {"2 + 2?": ("4", 1.0), "1 + 5?": ("about 7", 0.0), "3 + 3?": ("It is 6.", 0.5)}
    groups = [group(answer, question=question) for question, answer in answers.items()]
    assert shown(groups) == [("best", "2 + 2?", "4"), ("worst", "1 + 5?", "about 7")]
    assert shown(groups[1:2] * 2) == [("all alike", "1 + 5?", "about 7")]
    assert shown(groups[:1]) == [("only", "2 + 2?", "4")]


def test_there_may_be_nothing_to_show(group):
    assert choose(1, []) == []
    assert choose(1, [group()]) == []


def test_an_answer_says_when_it_is_empty_or_cut_off(group):
    empty, cut = group((" \n", 0.0)), group(("and so", 0.0), finished=False)
    assert answer_text(empty.trajectories[0]) == "(an empty answer)"
    assert answer_text(cut.trajectories[0]) == "and so [cut off]"


def test_samples_come_now_and_then():
    assert [update for update in range(1, 25) if is_due(update, 24)] == [1, 5, 9, 13, 17, 21]
    assert [update for update in range(1, 40) if is_due(update, 1000)] == [1, 11, 21, 31]
    assert all(is_due(update, 3) for update in (1, 2, 3))
