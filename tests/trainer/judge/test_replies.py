import json
from itertools import pairwise

import pytest

from trainer.chat.messages import Message
from trainer.judge.questions import Question, Verdict
from trainer.judge.replies import BadReplyError, read_reply

THREE = Question("list", (Message("user", "?"),), "rubric", ("x", "y", "z"), "")
TWO = Question("pair", (Message("user", "?"),), "rubric", ("x", "y"), "")


def item(name, score, **more):
    return {"id": name, "score": score, **more}


def listed(*items):
    return json.dumps({"scores": list(items)})


def trouble(text, question=THREE):
    with pytest.raises(BadReplyError) as caught:
        read_reply(text, question)
    return str(caught.value)


GOOD = listed(item("B", 0.5, explanation="why"), item("C", 1), item("A", 0, extra=[1]))


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"\n  {GOOD}\n",
        f"```json\n{GOOD}\n```",
        f"Here they are:\n```\n{GOOD}\n```\nI hope that this helps.",
        f"<think>A is {{worse}}\n```json\n{{}}\n```</think>\n{GOOD}",
        f"```python\nprint(1)\n```\n```json\n{GOOD}\n```",
    ],
)
def test_scores_are_found_by_id_and_not_by_place(text):
    assert read_reply(text, THREE) == (Verdict(0.0, ""), Verdict(0.5, "why"), Verdict(1.0, ""))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it is empty"),
        ("A is the best.", 'it is not a JSON object, but begins with "A is the best."'),
        ('{"scores": [', "it is not JSON"),
        (GOOD + " and that is all", "it is not JSON (Extra data"),
        (f"```\n{GOOD}\n```\n```\n{GOOD}\n```", "it holds 2 JSON objects where one was asked for"),
        ("{}", '"scores" must be a list, and is missing'),
        ('{"scores": {"A": 1}}', '"scores" must be a list, and is an object'),
        (listed(item("A", 1), item("B", 1)), "no score is given for C"),
        (listed(item("A", 1), item("B", 1), item("A", 1)), 'the id "A" is scored twice'),
        (
            listed(item("A", 1), item("D", 1)),
            'an id is the text "D"; those asked about are A, B, C',
        ),
        (listed(item("a", 1)), 'an id is the text "a"'),
        (listed(item(0, 1)), "an id is 0"),
        (listed({"score": 1}), "an id is missing"),
        (listed(3), "a score must be an object, and one is 3"),
        (listed({"id": "A"}), 'the score of "A" must be a number from 0 to 1, and is missing'),
        (listed(item("A", 1.01)), "from 0 to 1, and is 1.01"),
        (listed(item("A", -0.01)), "from 0 to 1, and is -0.01"),
        (listed(item("A", 7)), "from 0 to 1, and is 7"),
        (
            '{"scores": [{"id": "A", "score": ' + "9" * 5000 + "}]}",
            "from 0 to 1, and is Infinity",
        ),
        (listed(item("A", True)), "from 0 to 1, and is true"),
        (listed(item("A", "0.7")), 'from 0 to 1, and is the text "0.7"'),
        (listed(item("A", None)), "from 0 to 1, and is null"),
        ('{"scores": [{"id": "A", "score": NaN}]}', "it holds NaN, which JSON does not have"),
        ('{"scores": [{"id": "A", "score": 1, "score": 0}]}', "has the same field twice"),
        (listed(item("A", 1, explanation=3)), "an explanation must be text, and one is 3"),
        ("{" * 100_000, "it is not JSON"),
    ],
)
def test_what_is_not_exactly_a_verdict_is_refused(text, reason):
    assert reason in trouble(text)


def test_the_better_of_two_gets_one_and_the_other_zero():
    reply = read_reply('{"explanation": "clearer", "better": "B"}', TWO)
    assert reply == (Verdict(0.0, "clearer"), Verdict(1.0, "clearer"))
    tie = read_reply('{"better": "tie"}', TWO)
    assert [verdict.score for verdict in tie] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("better", "found"), [('"C"', 'the text "C"'), ("1", "1"), ("null", "null"), ("[]", "a list")]
)
def test_a_comparison_names_one_of_the_two(better, found):
    reason = trouble(f'{{"better": {better}}}', TWO)
    assert reason == f'"better" must be "A", "B" or "tie", and is {found}'
    assert "is missing" in trouble("{}", TWO)


def test_a_long_explanation_is_cut():
    reply = read_reply(json.dumps({"better": "A", "explanation": "x" * 5000}), TWO)
    assert len(reply[0].explanation) == 1000


def test_ids_count_as_columns_of_a_sheet_do():
    many = Question("list", (), "", ("",) * 704, "")
    assert (many.ids[0], many.ids[25], many.ids[26], many.ids[701]) == ("A", "Z", "AA", "ZZ")
    assert many.ids[702:] == ("AAA", "AAB")
    assert all(one != other for one, other in pairwise(many.ids))
