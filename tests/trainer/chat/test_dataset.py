import json
import os
from pathlib import Path

import pytest

from trainer.chat.dataset import read_prompts
from trainer.errors import DataError

HELLO = '{"messages": [{"role": "user", "content": "Hello"}]}'


def said(*turns):
    return json.dumps({"messages": [{"role": role, "content": text} for role, text in turns]})


def refusal(tmp_path, data):
    """What is said about a file with these bytes."""
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    with pytest.raises(DataError) as caught:
        read_prompts(path)
    return str(caught.value).replace(str(path), "prompts.jsonl")


def read(tmp_path, data):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return read_prompts(path)


def test_a_line_has_messages_rubric_and_metadata(tmp_path):
    fields = json.loads(said(("system", "Be brief"), ("user", "2+2?")))
    fields |= {"rubric": "Correct?", "answer": 4, "tags": {"level": [1, None]}}
    (prompt,) = read(tmp_path, json.dumps(fields))
    assert [(m.role, m.content) for m in prompt.messages] == [
        ("system", "Be brief"),
        ("user", "2+2?"),
    ]
    assert prompt.question == "2+2?"
    assert prompt.rubric == "Correct?"
    assert prompt.metadata == {"answer": 4, "tags": {"level": [1, None]}}


def test_bom_crlf_blank_lines_and_a_last_line_without_end_are_accepted(tmp_path):
    data = b"\xef\xbb\xbf" + f"{HELLO}\r\n\r\n  \t\n{HELLO}\n\n{HELLO}".encode()
    assert [prompt.line for prompt in read(tmp_path, data)] == [1, 4, 6]


def test_only_a_newline_ends_a_line(tmp_path):
    text = "one\u2028two\u2029three\x85four"
    data = json.dumps(
        {"messages": [{"role": "user", "content": text}]}, ensure_ascii=False
    ).encode()
    assert read(tmp_path, data)[0].question == text


def test_the_key_names_the_messages_alone(tmp_path):
    same = HELLO.replace("{", '{"answer": 1, ', 1)
    escaped = HELLO.replace("Hello", "\\u0048ello")
    other = HELLO.replace("Hello", "Bye")
    keys = [prompt.key for prompt in read(tmp_path, "\n".join([HELLO, same, escaped, other]))]
    assert keys[0] == keys[1] == keys[2] != keys[3]
    assert len(keys[0]) == 16


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (HELLO[:-1] + ",}", "not JSON: there is a trailing comma near column 53"),
        (HELLO + ",", "not JSON: there is a trailing comma near column 53"),
        (HELLO[:-2] + ",]}", "not JSON: there is a trailing comma near column 52"),
        (HELLO + HELLO, "not JSON: Extra data at column 53"),
        (HELLO[:-1], "not JSON: Expecting ',' delimiter at column 52"),
        (f"[{HELLO}]", "the line is an array; it must be one JSON object"),
        ("[", "the line is a part of a JSON array; write one JSON object a line"),
        ('"text"', "the line is a string; it must be one JSON object"),
        ("NaN", "NaN is not a JSON number"),
        ('{"a": -Infinity, ' + HELLO[1:], "-Infinity is not a JSON number"),
        ('{"a": 1e999, ' + HELLO[1:], "the number 1e999 is too large"),
        ('{"a": ' + "9" * 5000 + ", " + HELLO[1:], "a number cannot be read"),
        ('{"a": ' + "[" * 100_000, "the JSON is nested too deeply"),
        ('{"a": "\\ud83d", ' + HELLO[1:], "half of a surrogate pair"),
        ('{"prompt": "Hello"}', 'the field "messages" is missing'),
        ('{"messages": []}', '"messages" is empty'),
        ('{"messages": "Hello"}', '"messages" must be an array, not a string'),
        ('{"messages": ["Hello"]}', "message 1 must be an object, not a string"),
        (said(("user", "")), 'message 1 (user): "content" is empty'),
        (said(("user", " \n\u00a0")), 'message 1 (user): "content" is empty'),
        (said(("user", None)), '"content" must be a string, and is null'),
        (said(("user", 5)), '"content" must be a string, and is a number'),
        (said(("user", True)), '"content" must be a string, and is a boolean'),
        (said(("user", ["a"])), '"content" must be a string, and is an array'),
        ('{"messages": [{"role": "user"}]}', '"content" must be a string, and is missing'),
        ('{"messages": [{"content": "a"}]}', "message 1 has no role"),
        (said(("tool", "a")), 'message 1 has the role "tool"'),
        (said((["user"], "a")), 'message 1 has the role ["user"]'),
        (said(("user", "a"), ("user", "b")), "message 2 has the role user where assistant must"),
        (said(("assistant", "a"), ("user", "b")), "message 1 has the role assistant where user"),
        (said(("user", "a"), ("system", "b")), "message 2 has the role system where assistant"),
        (
            said(("system", "a"), ("system", "b"), ("user", "c")),
            "message 2 has the role system where user must",
        ),
        (said(("user", "a"), ("assistant", "b")), "ends with the role assistant"),
        (said(("system", "a")), "ends with the role system"),
        (
            '{"messages": [{"role": "user", "content": "a", "name": "x"}]}',
            'message 1 has the unknown key "name"',
        ),
        ('{"rubric": 3, ' + HELLO[1:], '"rubric" must be a string, not a number'),
        ('{"rubric": null, ' + HELLO[1:], '"rubric" must be a string, not null'),
        ('{"rubric": " ", ' + HELLO[1:], '"rubric" is empty'),
        ('{"a": 1, "a": 2, ' + HELLO[1:], 'the key "a" stands twice in one object'),
        (
            '{"messages": [{"role": "user", "content": "a", "content": "b"}]}',
            'the key "content" stands twice in one object',
        ),
        (
            HELLO.encode().replace(b"Hello", b"Gr\xfc\xdfe"),
            "byte 46 of the line (0xfc) is not UTF-8",
        ),
        (HELLO.encode() + b"\0", "not JSON: Extra data at column 53"),
    ],
)
def test_a_bad_line_is_refused_with_its_number_and_the_reason(tmp_path, data, reason):
    second = data if isinstance(data, bytes) else data.encode()
    message = refusal(tmp_path, HELLO.encode() + b"\r\n" + second + b"\n")
    assert message.startswith("prompts.jsonl:2: ")
    assert reason in message


@pytest.mark.parametrize(
    ("encoding", "named"),
    [
        ("utf-16", "UTF-16;"),
        ("utf-16-be", "UTF-16 or UTF-32;"),
        ("utf-32", "UTF-32;"),
        ("utf-32-be", "UTF-16 or UTF-32;"),
    ],
)
def test_another_encoding_is_named(tmp_path, encoding, named):
    assert f"prompts.jsonl:1: the file is encoded in {named}" in refusal(
        tmp_path, HELLO.encode(encoding)
    )


def test_all_bad_lines_are_told_at_once_up_to_twenty(tmp_path):
    message = refusal(tmp_path, "\n".join(["{}", HELLO, "[]"] + ["null"] * 30))
    lines = message.split("\n")
    assert lines[0].startswith("prompts.jsonl:1: ")
    assert lines[1].startswith("prompts.jsonl:3: ")
    assert len(lines) == 21
    assert lines[-1] == "and 12 more lines with errors"


@pytest.mark.parametrize("data", [b"", b"\n \r\n", b"\xef\xbb\xbf"])
def test_a_file_without_prompts_is_refused(tmp_path, data):
    assert "the file holds no prompt" in refusal(tmp_path, data)


def test_a_missing_file_and_a_directory_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"none\.jsonl: cannot read the prompts: No such file"):
        read_prompts(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="this is a directory"):
        read_prompts(tmp_path)


def test_a_pipe_or_a_device_is_refused_before_it_is_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    for path in (tmp_path / "pipe.jsonl", Path("/dev/zero")):
        with pytest.raises(DataError, match="not a regular file"):
            read_prompts(path)


@pytest.mark.parametrize("depth", [101, 400])
def test_metadata_that_no_request_could_carry_is_refused(tmp_path, depth):
    deep = HELLO[:-1] + ', "a": ' + "[" * depth + "]" * depth + "}"
    assert refusal(tmp_path, f"{HELLO}\n{deep}").startswith(
        "prompts.jsonl:2: the JSON is nested too deeply"
    )


def test_metadata_of_ordinary_depth_is_kept(tmp_path):
    deep = HELLO[:-1] + ', "a": ' + "[" * 90 + "]" * 90 + "}"
    assert "a" in read(tmp_path, deep)[0].metadata


def test_what_is_objected_to_is_listed_in_the_order_of_the_lines(tmp_path):
    path = tmp_path / "prompts.jsonl"
    rude = HELLO.replace("Hello", "Hey you")
    path.write_text(f"{HELLO}\n{rude}\n[\n{rude}\n", encoding="utf-8")

    def objection(line):
        return f"{line.question!r} is rude" if "you" in line.question else None

    with pytest.raises(DataError) as caught:
        read_prompts(path, objection=objection)
    first, second, third = str(caught.value).replace(str(path), "prompts.jsonl").splitlines()
    assert first == "prompts.jsonl:2: 'Hey you' is rude"
    assert second.startswith("prompts.jsonl:3: the line is a part of a JSON array")
    assert third == "prompts.jsonl:4: 'Hey you' is rude"


def test_lines_without_an_objection_are_read(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text(HELLO, encoding="utf-8")
    assert read_prompts(path, objection=lambda _: None) == read_prompts(path)
