"""One field of a form, taken out of the stream without taking it from the handler."""

from __future__ import annotations

from urllib.parse import parse_qsl

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.types import Message, Receive

PEEKED_BYTES = 64 * 1024
"""How far into a form of files the field is looked for."""


async def take_field(content_type: str, name: str, receive: Receive) -> tuple[str | None, Receive]:
    """The first value of the field ``name``, and a ``receive`` that gives the whole body all the
    same. A form without files is read to its end, of one with files no more than is needed: up to
    the field, to the first file, or to `PEEKED_BYTES`."""
    kind, options = parse_options_header(content_type)
    if kind == b"application/x-www-form-urlencoded":
        return await _of_plain_form(name, receive)
    if kind == b"multipart/form-data" and options.get(b"boundary"):
        return await _of_multipart(_Finder(options[b"boundary"], name), receive)
    return None, receive


async def _of_plain_form(name: str, receive: Receive) -> tuple[str | None, Receive]:
    messages = [await receive()]
    while messages[-1].get("more_body", False):
        messages.append(await receive())
    body = b"".join(message.get("body", b"") for message in messages)
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=1000)
    except ValueError:
        fields = []
    found = next((value for key, value in fields if key == name), None)
    return found, _again(messages, receive)


async def _of_multipart(finder: _Finder, receive: Receive) -> tuple[str | None, Receive]:
    messages: list[Message] = []
    more, seen = True, 0
    while more and not finder.done and seen < PEEKED_BYTES:
        messages.append(await receive())
        body = messages[-1].get("body", b"")
        more = messages[-1].get("more_body", False)
        finder.read(body[: PEEKED_BYTES - seen])
        seen += len(body)
    return finder.value, _again(messages, receive)


def _again(messages: list[Message], receive: Receive) -> Receive:
    """``messages``, and then what follows them."""
    waiting = iter(messages)

    async def replay() -> Message:
        message = next(waiting, None)
        return await receive() if message is None else message

    return replay


class _Finder:
    """Reads a form part by part; ``done`` when the field was met, or a file, or nonsense."""

    def __init__(self, boundary: bytes, name: str) -> None:
        self.value: str | None = None
        self.done = False
        self._name = name.encode()
        self._header = self._disposition = b""
        self._reading = False
        self._data = b""
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._header_field,
                "on_header_value": self._header_value,
                "on_header_end": self._header_end,
                "on_headers_finished": self._headers_finished,
                "on_part_data": self._part_data,
                "on_part_end": self._part_end,
            },
        )

    def read(self, data: bytes) -> None:
        try:
            self._parser.write(data)
        except FormParserError:
            self.done = True

    def _begin(self) -> None:
        self._header = self._disposition = self._data = b""

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition += data[start:end]

    def _header_end(self) -> None:
        self._header = b""

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._reading = not self.done and options.get(b"name") == self._name
        self.done = self.done or b"filename" in options

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._reading:
            self._data += data[start:end]

    def _part_end(self) -> None:
        if self._reading and not self.done:
            self.value = self._data.decode("latin-1")
            self.done = True
