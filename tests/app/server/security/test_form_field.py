from __future__ import annotations

import asyncio

import pytest

from app.server.security.form_field import PEEKED_BYTES, take_field

FORM = "application/x-www-form-urlencoded"
FILES = "multipart/form-data; boundary=b"


def part(name: str, content: bytes, extra: str = "") -> bytes:
    head = f'--b\r\nContent-Disposition: form-data; name="{name}"{extra}\r\n\r\n'
    return head.encode() + content + b"\r\n"


def taken(content_type: str, body: bytes, step: int) -> tuple[str | None, int, bytes]:
    """The field ``t`` of ``body``, sent ``step`` bytes at a time; how many bytes were read for it,
    and what a handler reads afterwards."""
    pieces = [body[i : i + step] for i in range(0, len(body), step)] or [b""]
    sent = 0

    async def receive():
        nonlocal sent
        piece = pieces[sent]
        sent += 1
        return {"type": "http.request", "body": piece, "more_body": sent < len(pieces)}

    async def both():
        value, again = await take_field(content_type, "t", receive)
        read = sum(len(piece) for piece in pieces[:sent])
        whole = b""
        while True:
            message = await again()
            whole += message["body"]
            if not message["more_body"]:
                return value, read, whole

    return asyncio.run(both())


@pytest.mark.parametrize("step", [1, 3, 10_000])
@pytest.mark.parametrize(
    ("content_type", "body", "value"),
    [
        (FORM, b"t=abc&x=1", "abc"),
        (FORM, b"x=1&t=a%20b", "a b"),
        (FORM, b"x=1", None),
        (FORM, b"", None),
        (FORM, b"\xff=1", None),
        (FILES, part("t", b"abc") + part("x", b"1") + b"--b--\r\n", "abc"),
        (FILES, part("x", b"1") + part("t", b"abc") + b"--b--\r\n", "abc"),
        (FILES, part("f", b"1", '; filename="t"') + part("t", b"abc") + b"--b--\r\n", None),
        (FILES, part("t", b"abc", '; filename="t"') + b"--b--\r\n", None),
        (FILES, b"no form at all", None),
        ("multipart/form-data", part("t", b"abc") + b"--b--\r\n", None),
        ("application/json", b'{"t": 1}', None),
        ("", b"t=abc", None),
    ],
)
def test_the_field_is_found_and_the_body_stays_whole(content_type, body, value, step):
    found, _, again = taken(content_type, body, step)
    assert found == value
    assert again == body


def test_of_a_file_no_more_is_read_than_its_head():
    body = part("f", b"x" * 1_000_000, '; filename="f"')
    found, read, again = taken(FILES, body, 4096)
    assert (found, read, again) == (None, 4096, body)


def test_of_long_fields_no_more_is_read_than_a_limit():
    body = part("long", b"x" * 1_000_000) + part("t", b"abc")
    found, read, again = taken(FILES, body, 4096)
    assert (found, read, again) == (None, PEEKED_BYTES, body)
