import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.chat.messages import Message, PromptLine
from trainer.reward.exchange import RewardRequest
from trainer.reward.protocol import (
    MAX_LINE_BYTES,
    batch_end_line,
    check_batch_end,
    check_handshake,
    decode_line,
    encode_line,
    handshake_line,
    objection,
    parse_reply,
    reply_index,
    request_line,
)
from trainer.reward.report import ProgramError


def request(completion="4", **metadata):
    messages = (Message("system", "Be brief."), Message("user", "What is 2 + 2?"))
    prompt = PromptLine(line=3, messages=messages, metadata=metadata, rubric="r", key="k")
    return RewardRequest(prompt, completion)


def test_request_holds_prompt_completion_messages_and_metadata():
    assert json.loads(request_line(request(answer=4, tags=["sum"]))) == {
        "prompt": "What is 2 + 2?",
        "completion": "4",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is 2 + 2?"},
        ],
        "metadata": {"answer": 4, "tags": ["sum"]},
    }


def test_request_of_a_batch_says_its_place():
    fields = json.loads(request_line(request(), (5, 2)))
    assert (fields["_retrograd_batch"], fields["_retrograd_index"]) == (5, 2)


def test_a_prompt_may_fill_its_request_up_to_the_room_for_the_answer():
    """7 MiB of the line's 8 are for the prompt; "ü" takes six bytes, as \\u00fc."""

    def said_of(size):
        frame = len(request_line(request("", text=""), (0, 0)))
        return objection(request("", text="x" * (size - frame)).prompt)

    assert said_of(7 * 2**20) is None
    assert said_of(7 * 2**20 + 1) == (
        "as a request to the reward program this line has 7340033 bytes, and 7340032 is the limit: "
        "shorten its messages or extra fields"
    )
    assert objection(request("", text="ü" * 1_000_000).prompt) is None
    assert "this line has 7800" in objection(request("", text="ü" * 1_300_000).prompt)


def test_a_prompt_beyond_the_limit_of_any_line_is_objected_to_alike():
    assert "this line has 9000" in objection(request("", text="x" * 9_000_000).prompt)


def test_control_lines():
    assert handshake_line() == b'{"protocol": "retrograd-reward/1"}\n'
    assert batch_end_line(3) == b'{"_retrograd_batch_end": 3}\n'


@pytest.mark.parametrize(
    ("sent", "arrives"),
    [
        ("half \ud83d of a pair", "half \ufffd of a pair"),
        ("\udc00\ud800", "\ufffd\ufffd"),
        ("\ud83d\ude00", "😀"),
        ("nul \0, escape \x1b, line\n, separator \u2028 \x85", None),
        ("naïve 日本 😀", None),
    ],
)
def test_any_text_is_sent_as_one_line_of_valid_json(sent, arrives):
    line = request_line(request(sent, **{sent: [sent]}))
    fields = json.loads(line.decode("utf-8"))
    expected = sent if arrives is None else arrives
    assert fields["completion"] == expected
    assert fields["metadata"] == {expected: [expected]}
    assert line.decode("utf-8").splitlines() == [line.decode("utf-8").removesuffix("\n")]


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_every_string_survives_encoding(text):
    line = encode_line({"completion": text})
    assert json.loads(line.decode("utf-8")) == {"completion": text}


@pytest.mark.parametrize("value", [float("nan"), object()])
def test_metadata_that_json_cannot_hold_is_refused(value):
    with pytest.raises(ProgramError, match="does not fit in JSON"):
        request_line(request(answer=value))


def test_request_beyond_the_limit_is_refused():
    with pytest.raises(ProgramError, match=f"{MAX_LINE_BYTES} is the limit"):
        request_line(request("x" * MAX_LINE_BYTES))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"loading model...", "not JSON"),
        (b"", "blank line"),
        (b"  \r", "blank line"),
        (b"[1]", "a list where a JSON object"),
        (b"0.5", "0.5 where a JSON object"),
        (b'{"reward": 1} {"reward": 2}', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"reward": 1, "reward": 2}', "repeats the field reward"),
        (b'{"reward": "\xff"}', "not valid UTF-8 .byte 0xff at position 12"),
    ],
)
def test_a_line_that_is_no_object_is_named(line, problem):
    with pytest.raises(ProgramError, match=problem):
        decode_line(line)


@pytest.mark.parametrize("line", [b"loading model...", b"", b"[1]"])
def test_stray_output_is_advised_to_go_to_stderr(line):
    with pytest.raises(ProgramError) as caught:
        decode_line(line)
    assert "stderr" in caught.value.advice


def test_progress_bar_is_recognised():
    with pytest.raises(ProgramError) as caught:
        decode_line(b'\r 50%|##  |\r100%|####|{"reward": 1}')
    assert "progress bar" in caught.value.advice


@pytest.mark.parametrize(
    ("reward", "problem"),
    [
        ("null", "is null"),
        ("true", "is true"),
        ('"0.7"', 'is the text "0.7"'),
        ("[1]", "is a list"),
        ("{}", "is an object"),
        ("NaN", "is NaN"),
        ("Infinity", "is Infinity"),
        ("-Infinity", "is -Infinity"),
        ("1e999", "is too large"),
        ("1" + "0" * 400, "is too large"),
        ("1" + "0" * 310, "is too large"),
        ("9" * 5000, "is too large"),
    ],
)
def test_reward_must_be_a_finite_number(reward, problem):
    with pytest.raises(ProgramError, match=f"reward {problem}"):
        parse_reply(decode_line(f'{{"reward": {reward}}}'.encode()), judge_allowed=False)


def test_reward_must_be_there():
    with pytest.raises(ProgramError, match="without a reward"):
        parse_reply({"score": 1.0}, judge_allowed=False)


def test_reply_with_everything():
    line = b'{"reward": 1, "parts": {"form": 0.5, "sum": -1}, "judge_weight": 0, "note": "x"}\r'
    reply = parse_reply(decode_line(line), judge_allowed=True)
    assert isinstance(reply.reward, float)
    assert (reply.reward, reply.parts, reply.judge_weight) == (1.0, {"form": 0.5, "sum": -1.0}, 0.0)


def test_reply_with_the_reward_alone():
    reply = parse_reply({"reward": -2.5}, judge_allowed=True)
    assert (reply.reward, reply.parts, reply.judge_weight) == (-2.5, {}, None)


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ("[0.5]", "parts are a list"),
        ("null", "parts are null"),
        ('{"form": null}', 'part "form" is null'),
        ('{"form": NaN}', 'part "form" is NaN'),
        ('{"form": true}', 'part "form" is true'),
        ('{"": 1}', "no name"),
    ],
)
def test_parts_must_map_names_to_finite_numbers(parts, problem):
    with pytest.raises(ProgramError, match=problem):
        parse_reply(decode_line(f'{{"reward": 1, "parts": {parts}}}'.encode()), judge_allowed=True)


@pytest.mark.parametrize(
    ("allowed", "weight", "problem"),
    [
        (False, "0.5", "this run has no judge"),
        (True, "null", "judge_weight is null"),
        (True, "Infinity", "judge_weight is Infinity"),
        (True, "-0.5", "judge_weight is -0.5"),
    ],
)
def test_judge_weight_is_refused(allowed, weight, problem):
    fields = decode_line(f'{{"reward": 1, "judge_weight": {weight}}}'.encode())
    with pytest.raises(ProgramError, match=problem):
        parse_reply(fields, judge_allowed=allowed)


def test_reply_is_placed_by_its_index():
    assert reply_index({"_retrograd_batch": 2, "_retrograd_index": 3}, batch=2, count=4) == 3


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"debug": 1}, "not a reply"),
        ({"reward": 1}, "without _retrograd_batch and _retrograd_index"),
        ({"reward": 1, "_retrograd_batch": 2}, "without _retrograd_index"),
        ({"_retrograd_batch": 1, "_retrograd_index": 0}, "_retrograd_batch 1; 2 was expected"),
        ({"_retrograd_batch": "2", "_retrograd_index": 0}, 'the text "2"; 2 was expected'),
        (
            {"_retrograd_batch": 2, "_retrograd_index": 4},
            "_retrograd_index 4; expected were 0 to 3",
        ),
        ({"_retrograd_batch": 2, "_retrograd_index": -1}, "_retrograd_index -1"),
        ({"_retrograd_batch": 2, "_retrograd_index": True}, "_retrograd_index true"),
    ],
)
def test_reply_without_its_place_is_refused(fields, problem):
    with pytest.raises(ProgramError, match=problem):
        reply_index(fields, batch=2, count=4)


@pytest.mark.parametrize(
    "fields",
    [
        {"_retrograd_batch_end": 1},
        {"_retrograd_batch_end": True},
        {"_retrograd_batch_end": 2, "reward": 1},
    ],
)
def test_another_end_of_the_batch_is_refused(fields):
    with pytest.raises(ProgramError, match='"_retrograd_batch_end": 2'):
        check_batch_end(fields, batch=2)


def test_another_protocol_is_named():
    with pytest.raises(ProgramError, match='"retrograd-reward/9"'):
        check_handshake({"protocol": "retrograd-reward/9"})
