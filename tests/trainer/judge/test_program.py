"""A judge that is a program, run for real."""

import json
import textwrap
import time

import pytest
from judge_server import command_section, eight, group, numbers
from left_over import nothing_left

from trainer.judge.judge import open_judge
from trainer.judge.questions import JudgeError, JudgeStopped

GOOD = """
import json, sys
request = json.loads(sys.stdin.readline())
scores = [
    {"id": a["id"], "score": int(a["completion"].split()[-1]) / 10, "explanation": "by number"}
    for a in request["answers"]
]
print(json.dumps({"scores": scores[::-1]}))
"""


@pytest.fixture
def opened(tmp_path):
    def open_(source, listener=None, **keys):
        (tmp_path / "judge.py").write_text(textwrap.dedent(source))
        section = command_section("python3", "judge.py", **keys)
        return open_judge(section, folder=tmp_path, seed=42, listener=listener)

    return open_


nothing_is_left = pytest.fixture(autouse=True)(nothing_left)


def reason(judge):
    (ruling,) = judge.judge([group("quality 3", "quality 7")]).rulings
    return ruling.failure.reason


@pytest.mark.parametrize(
    "source",
    [
        GOOD,
        GOOD.replace("sys.stdin.readline()", "sys.stdin.read()"),
        GOOD.replace(
            'print(json.dumps({"scores": scores[::-1]}))',
            'sys.stdout.write(json.dumps({"scores": scores}))',
        ),
    ],
    ids=["reads a line", "reads all", "ends without a newline"],
)
def test_one_line_in_and_one_line_out(opened, source):
    heard, done = [], []
    judge = opened(source, listener=heard.append)
    judgement = judge.judge([eight()], lambda *pair: done.append(pair))
    (ruling,) = judgement.rulings
    assert numbers(ruling) == [0.3, 0.7, 0.1, 0.8, 0.4, 0.2, 0.6, 0.5]
    assert ruling.verdicts[0].explanation == "by number"
    assert done == [(1, 1)]
    assert judgement.metrics["judge/requests"] == 1
    assert judgement.metrics["judge/cache_hit_fraction"] == 0
    sent = json.loads(heard[0].sent)
    assert sent["prompt"] == "What is 2 + 2?"
    assert sent["messages"] == [{"role": "user", "content": "What is 2 + 2?"}]
    assert sent["rubric"].startswith("Prefer answers that are correct")
    assert [answer["id"] for answer in sent["answers"]] == list("ABCDEFGH")
    assert sorted(answer["completion"] for answer in sent["answers"]) == sorted(eight().answers)


def test_rubric_budgets_and_strategy_are_those_of_any_judge(opened):
    heard = []
    judge = opened(
        GOOD,
        listener=heard.append,
        rubric="By number.",
        strategy={"mode": "pairwise", "max_pairs": 2},
        context={"max_message_chars": 40},
    )
    (ruling,) = judge.judge([group(*(f"{'x' * 100} {q}" for q in (1, 2, 3)))]).rulings
    requests = [json.loads(exchange.sent) for exchange in heard]
    assert [len(request["answers"]) for request in requests] == [2] * 4
    assert {request["rubric"] for request in requests} == {"By number."}
    assert all(len(a["completion"]) <= 40 for request in requests for a in request["answers"])
    assert sorted(numbers(ruling)) == [0.0, 0.5, 1.0]


def test_text_of_any_kind_arrives_as_it_is(opened):
    awkward = 'a "quote", a \\, \u2028, \x00, é 数 😀\n</answer> <|im_end|>'
    echo = """
    import json, sys
    request = json.loads(sys.stdin.buffer.readline())
    texts = {a["id"]: a["completion"] for a in request["answers"]}
    right = 'a "quote", a \\\\, \\u2028, \\x00, é 数 😀\\n</answer> <|im_end|>'
    scores = [{"id": i, "score": float(t == right)} for i, t in texts.items()]
    print(json.dumps({"scores": scores}))
    """
    (ruling,) = opened(echo).judge([group(awkward, "other")]).rulings
    assert numbers(ruling) == [1.0, 0.0]


def test_the_program_of_the_documentation_works(opened, root):
    page = (root / "docs" / "judge.md").read_text(encoding="utf-8")
    source = page.split("```python\n")[1].split("```")[0]
    (ruling,) = opened(source).judge([group("12345678", "12", "1234")]).rulings
    assert numbers(ruling) == [0.0, 0.75, 0.5]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("print('loading')", "the program wrote a line that is not JSON"),
        ("print('[]')", "the program wrote a list where a JSON object was expected"),
        ("print('{}')", 'its reply cannot be used: "scores" must be a list, and is missing'),
        ("", "the program wrote 0 lines where one was expected"),
        (GOOD + "print('done')", "the program wrote 2 lines where one was expected, such as: done"),
        (GOOD.replace("/ 10", "* 10"), "must be a number from 0 to 1, and is"),
        (GOOD.replace("scores[::-1]", "scores[1:]"), "no score is given for A"),
        (GOOD + "sys.exit(3)", "the program ended (exit status 3)"),
        (
            "import sys; sys.exit('no model here')",
            'the program ended (exit status 1); its stderr ends with "no model here"',
        ),
    ],
)
def test_what_breaks_the_protocol_fails_the_group(opened, source, words):
    assert words in reason(opened(source))


def test_a_program_that_is_late_is_ended(opened):
    began = time.monotonic()
    words = reason(opened("import time; time.sleep(60)", timeout_secs=0.3))
    assert words == "the program did not answer and end within 0.3 s (timeout_secs)"
    assert time.monotonic() - began < 5


def test_a_program_that_answers_and_stays_is_late(opened):
    source = GOOD + "sys.stdout.flush()\nimport time\ntime.sleep(60)"
    assert "did not answer and end within" in reason(opened(source, timeout_secs=0.5))


def test_a_wish_to_stop_ends_the_program(opened):
    judge = opened("import time; time.sleep(60)")
    wishes = iter([False, True])
    began = time.monotonic()
    with pytest.raises(JudgeStopped):
        judge.judge([group("quality 1", "quality 2")], should_stop=lambda: next(wishes))
    assert time.monotonic() - began < 5


def test_a_command_that_is_not_there_is_refused_at_once(tmp_path):
    with pytest.raises(JudgeError) as caught:
        open_judge(command_section("no-such-judge", "-x"), folder=tmp_path, seed=1)
    message = str(caught.value)
    assert message.startswith('The judge (command = ["no-such-judge", "-x"], run in ')
    assert 'there is no command "no-such-judge"' in message


def test_the_command_is_read_by_no_shell(opened, tmp_path):
    (tmp_path / "judge.sh").write_text('#!/bin/sh\ntouch started; echo "$1" >&2; exit 9\n')
    (tmp_path / "judge.sh").chmod(0o755)
    section = command_section("./judge.sh", "$(touch hacked); *")
    words = reason(open_judge(section, folder=tmp_path, seed=1))
    assert 'its stderr ends with "$(touch hacked); *"' in words
    assert (tmp_path / "started").exists()
    assert not (tmp_path / "hacked").exists()
