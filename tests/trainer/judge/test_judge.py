import json
from pathlib import Path
from random import Random

import pytest
from judge_server import by_quality, eight, group, numbers, opened, quality, says, scores, section

from trainer.chat.messages import Message, PromptLine
from trainer.errors import ConfigError
from trainer.judge.judge import Judge, Ruling, judge_metrics, open_judge
from trainer.judge.prompts import RUBRICS
from trainer.judge.questions import Asked, Failure, GroupToJudge, Verdict


def part(request, name):
    return dict(request.parts()[0])[name]


def test_verdicts_come_in_the_order_of_the_answers_with_their_explanations(serve):
    server = serve(by_quality)
    (ruling,) = opened(server.url).judge([eight()]).rulings
    assert numbers(ruling) == [0.3, 0.7, 0.1, 0.8, 0.4, 0.2, 0.6, 0.5]
    (request,) = server.requests
    by_text = {text: f"about {name}" for name, text in request.answers().items()}
    told = [verdict.explanation for verdict in ruling.verdicts]
    assert told == [by_text[answer] for answer in eight().answers]


def test_answers_are_shuffled_and_the_seed_says_how(serve):
    server = serve(by_quality)
    for seed in (1, 1, 2):
        opened(server.url, _seed=seed).judge([eight()])
    orders = [list(request.answers().values()) for request in server.requests]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == sorted(eight().answers)
    assert orders[0] not in (list(eight().answers), sorted(eight().answers))


def test_the_order_of_the_group_changes_neither_request_nor_verdicts(serve):
    server = serve(by_quality)
    judge = opened(server.url)
    answers = list(eight().answers)
    for seed in range(3):
        Random(seed).shuffle(answers)
        (ruling,) = judge.judge([group(*answers)]).rulings
        assert numbers(ruling) == [quality(answer) / 10 for answer in answers]
    assert len({request.user for request in server.requests}) == 1


def test_identical_answers_are_sent_once_and_share_a_verdict(serve):
    server = serve(by_quality)
    three, five = "quality 3", "quality 5"
    (ruling,) = opened(server.url).judge([group(five, three, five, five)]).rulings
    assert numbers(ruling) == [0.5, 0.3, 0.5, 0.5]
    assert sorted(server.requests[0].answers().values()) == [three, five]


def test_a_group_of_one_answer_is_not_sent(serve):
    server = serve()
    judgement = opened(server.url).judge([group("same", "same", "same")])
    assert numbers(judgement.rulings[0]) == [0.5] * 3
    assert not judgement.rulings[0].asked
    assert judgement.metrics == {"judge/requests": 0, "judge/dropped_group_fraction": 0}


def test_a_group_that_does_not_weigh_the_judge_is_not_sent(serve):
    server = serve(by_quality)
    weightless = group("quality 1", "quality 2", weights=[0.0, 0.0])
    partly = group("quality 1", "quality 2", "quality 3", weights=[0.0, 0.35, 0.0])
    first, second = opened(server.url).judge([weightless, partly]).rulings
    assert numbers(first) == [0.0, 0.0]
    assert not first.asked
    assert numbers(second) == [0.1, 0.2, 0.3]
    assert [len(request.answers()) for request in server.requests] == [3]


def test_answers_and_weights_have_to_match():
    with pytest.raises(ValueError, match="2 answers have 1 weights"):
        group("a", "b", weights=[1.0])


def test_an_update_without_groups_asks_nothing(serve):
    judgement = opened(serve().url).judge([])
    assert (list(judgement.rulings), judgement.metrics) == ([], {"judge/requests": 0})


PAIRWISE = {"mode": "pairwise"}


@pytest.mark.parametrize(
    ("own", "keys", "expected"),
    [
        (None, {}, RUBRICS["list"]),
        (None, {"rubric": "the run's"}, "the run's"),
        ("its own", {"rubric": "the run's"}, "its own"),
        (None, {"strategy": PAIRWISE}, RUBRICS["pair"]),
        (None, {"strategy": PAIRWISE, "rubric": "r", "pairwise_rubric": "of pairs"}, "of pairs"),
        (None, {"strategy": PAIRWISE, "rubric": "the run's"}, "the run's"),
        (None, {"pairwise_rubric": "of pairs"}, RUBRICS["list"]),
        ("its own", {"strategy": PAIRWISE, "pairwise_rubric": "of pairs"}, "its own"),
    ],
)
def test_the_rubric_of_a_prompt_comes_before_the_runs(serve, own, keys, expected):
    server = serve(by_quality)
    opened(server.url, **keys).judge([group("quality 1", "quality 2", rubric=own)])
    assert {part(request, "rubric") for request in server.requests} == {expected}


def test_long_texts_are_cut_before_they_are_sent(serve):
    server = serve(lambda request: scores(request, lambda text, _: float(text[0] == "a")))
    judge = opened(server.url, context={"max_message_chars": 60, "head_ratio": 0.5})
    messages = (Message("system", "s" * 100), Message("user", "u" * 100))
    prompt = PromptLine(1, messages, {}, None, "k")
    answers = ["a" * 500, "b" * 61]
    (ruling,) = judge.judge([GroupToJudge(prompt, answers, [1.0, 1.0])]).rulings
    assert numbers(ruling) == [1.0, 0.0]
    (request,) = server.requests
    # "\n[… 467 characters cut …]\n" has 26 characters, so 34 of the text stay.
    sent = sorted(request.answers().values())
    assert sent[0] == "a" * 17 + "\n[… 466 characters cut …]\n" + "a" * 17
    assert all(len(text) <= 60 for text in sent)
    assert len(part(request, "message by system")) <= 60
    assert part(request, "message by user").startswith("u" * 17)


def test_no_request_is_longer_than_allowed_and_a_long_group_is_split(serve):
    server = serve(by_quality)
    judge = opened(server.url, context={"max_request_chars": 5000})
    answers = [f"quality {q} " + "x" * 700 for q in range(1, 9)]
    (ruling,) = judge.judge([group(*answers)]).rulings
    assert len(server.requests) > 1
    assert all(len(r.system) + len(r.user) <= 5000 for r in server.requests)
    ranked = sorted(range(8), key=numbers(ruling).__getitem__)
    assert ranked == list(range(8))


def test_a_group_that_fits_nowhere_fails_with_advice_and_is_not_sent(serve):
    server = serve()
    context = {"max_request_chars": 4000, "max_message_chars": 4000}
    judge = opened(server.url, context=context, strategy=PAIRWISE)
    (ruling,) = judge.judge([group("a" * 3000, "b" * 3000)]).rulings
    assert "raise max_request_chars" in ruling.failure.reason


def test_a_budget_without_room_for_the_instructions_is_refused_at_once():
    keys = {"context": {"max_request_chars": 500, "max_message_chars": 500}}
    with pytest.raises(ConfigError, match=r"max_request_chars = 500 has no room for answers"):
        opened("http://127.0.0.1:9/v1", **keys)


def test_a_named_key_has_to_be_there():
    with pytest.raises(ConfigError, match="The environment variable MY_KEY"):
        opened("http://127.0.0.1:9/v1", environment={}, api_key_env="MY_KEY")


def test_a_failure_names_its_group_alone(serve):
    server = serve(lambda r: says("no") if "hard" in r.user else by_quality(r))
    pair = ("quality 1", "quality 2")
    groups = [group(*pair, question=q) for q in ("easy", "hard", "easier")]
    rulings = opened(server.url).judge(groups).rulings
    assert [ruling.failure is None for ruling in rulings] == [True, False, True]
    assert rulings[1].verdicts == ()


def test_a_listener_hears_every_request_with_its_words(serve):
    turns = iter([says("no"), says(json.dumps({"better": "A"})), says(json.dumps({"better": "B"}))])
    heard = []
    judge = opened(
        serve(lambda _: next(turns)).url,
        strategy=PAIRWISE,
        max_concurrency=1,
        _listener=heard.append,
    )
    judge.judge([group("quality 1", "quality 2")])
    labels = [exchange.label for exchange in heard]
    assert sorted(labels) == [
        *["group 1 (line 7 of the prompts), request 1 of 2"] * labels.count(labels[0]),
        *["group 1 (line 7 of the prompts), request 2 of 2"] * (3 - labels.count(labels[0])),
    ]
    assert heard[0].received == "no"
    assert "its reply cannot be used: it is not a JSON object" in heard[0].problem
    assert all(
        exchange.sent.startswith("[system]\nYou are an impartial judge") for exchange in heard
    )
    assert [exchange.problem for exchange in heard[1:]] == [None, None]


def test_the_metrics_of_an_update():
    def ruling(*scores):
        return Ruling(tuple(Verdict(score, "") for score in scores))

    rulings = [
        ruling(0.0, 1.0),  # mean 0.5, deviation 0.5
        ruling(0.4, 0.4),  # degenerate
        Ruling((), Failure("lost")),
        Ruling((Verdict(0.0, ""),) * 2, asked=False),
    ]
    asked = Asked(replies=[()] * 8, latencies=[1.0, 2.0, 6.0], saved=6)
    assert judge_metrics(rulings, asked) == {
        "judge/requests": 3.0,
        "judge/latency_seconds": 3.0,
        "judge/cache_hit_fraction": 0.75,
        "judge/dropped_group_fraction": 0.25,
        "judge/degenerate_group_fraction": 0.5,
        "judge/score_mean": pytest.approx(1.8 / 4),
        "judge/score_std": pytest.approx(0.25),
    }


def test_any_asker_will_do():
    class Longest:
        def size(self, question):
            return 0

        def ask(self, questions, on_progress=None, should_stop=None):
            replies = [tuple(Verdict(len(t) / 10, "") for t in q.texts) for q in questions]
            return Asked(replies, [], saved=0)

    judge = Judge(section(), Longest(), seed=1)
    assert numbers(judge.judge([group("a", "aaa", "aa")]).rulings[0]) == [0.1, 0.3, 0.2]


def test_opening_a_judge_asks_nothing(serve):
    server = serve()
    open_judge(section(server.url), folder=Path("/project"), seed=1, environment={})
    assert server.requests == []
