from __future__ import annotations

from app.terminal.samples import answer_text, choose, is_due


def test_the_group_that_differs_most_shows_its_best_and_worst(group):
    dull = group(("a", 0.5), ("b", 0.6))
    telling = group(("bad", -1.0), ("good", 1.0), ("middling", 0.0), question="What is 2 + 3?")
    sample = choose([dull, telling])
    assert sample.prompt == "What is 2 + 3?"
    assert [(label, t.answer.text) for label, t in sample.answers] == [
        ("best", "good"),
        ("worst", "bad"),
    ]


def test_where_all_score_alike_one_answer_is_enough(group):
    sample = choose([group(("x", 0.0), ("y", 0.0))])
    assert [(label, t.answer.text) for label, t in sample.answers] == [("all alike", "x")]


def test_there_may_be_nothing_to_show(group):
    assert choose([]) is None
    assert choose([group()]) is None


def test_an_answer_says_when_it_is_empty_or_cut_off(group):
    empty, cut = group((" \n", 0.0)), group(("and so", 0.0), finished=False)
    assert answer_text(empty.trajectories[0]) == "(an empty answer)"
    assert answer_text(cut.trajectories[0]) == "and so [cut off]"


def test_samples_come_now_and_then():
    assert [update for update in range(1, 25) if is_due(update, 24)] == [1, 5, 9, 13, 17, 21]
    assert [update for update in range(1, 40) if is_due(update, 1000)] == [1, 11, 21, 31]
    assert all(is_due(update, 3) for update in (1, 2, 3))
