"""Reads prompt and data files: a line is a JSON object with a conversation, or plain text."""

from __future__ import annotations

import codecs
import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar, cast

from trainer.chat.messages import DataLine, Message, PromptLine, Role
from trainer.errors import DataError

_SHOWN_ERRORS = 20
_NESTING = 100
"""Far below where Python's JSON writer gives up, however deep the call that writes it."""
_BLANK = b" \t\r"
_ENCODINGS = (
    # UTF-32 first: its little-endian mark begins with that of UTF-16.
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)

T = TypeVar("T")


class _BadLineError(Exception):
    """Why a line is refused."""


def read_prompts(
    path: Path, *, objection: Callable[[PromptLine], str | None] | None = None
) -> list[PromptLine]:
    """Read a file of conversations that end with a user message.

    The file is UTF-8, with or without a byte order mark; lines may end with CRLF, blank lines are
    skipped, and the last line needs no end. Beside ``messages``, a line may hold ``rubric``, a
    string; its other fields become the prompt's metadata. ``objection`` sees each line that is
    right so far, and says why it cannot be used all the same, or None.

    Raises:
        DataError: the file cannot be read, holds no prompt, or has lines that break these rules or
            meet an objection; the first twenty such lines are named, each with its reason.
    """

    def make(number: int, raw: bytes) -> PromptLine:
        line = _prompt(number, raw)
        if objection is not None and (reason := objection(line)) is not None:
            raise _BadLineError(reason)
        return line

    example = '{"messages": [{"role": "user", "content": "Hello"}]}'
    empty = f"the file holds no prompt; write one JSON object a line, for example {example}"
    return _read(path, make, empty)


def read_conversations(path: Path) -> list[DataLine]:
    """Read a file of conversations that end with an assistant message, under the same rules; fields
    beside ``messages`` are passed over. Raises DataError as `read_prompts` does."""

    def make(number: int, raw: bytes) -> DataLine:
        fields = _object(raw)
        return DataLine(number, _messages(_required(fields), last="assistant"))

    example = (
        '{"messages": [{"role": "user", "content": "Hello"}, '
        '{"role": "assistant", "content": "Hi!"}]}'
    )
    empty = f"the file holds no conversation; write one JSON object a line, for example {example}"
    return _read(path, make, empty)


def read_plain(path: Path) -> list[DataLine]:
    """Read a file of plain text, in which each line that is not blank is a text. Raises DataError
    where it cannot be read, is not UTF-8 or holds no text."""
    empty = "the file holds no text; each line is one"
    return _read(path, lambda number, raw: DataLine(number, _decoded(raw).rstrip("\r")), empty)


def _read(path: Path, make: Callable[[int, bytes], T], empty: str) -> list[T]:
    """What ``make`` makes of each line that is not blank; ``empty`` says that there is none."""
    made, errors = [], []
    for number, raw in enumerate(_lines(path), start=1):
        if not raw.strip(_BLANK):
            continue
        try:
            made.append(make(number, raw))
        except _BadLineError as error:
            errors.append(f"{path}:{number}: {error}")
    if errors:
        raise DataError(listing(errors))
    if not made:
        raise DataError(f"{path}: {empty}")
    return made


def listing(errors: list[str]) -> str:
    """The first errors, one a line, and how many more there are."""
    shown = errors[:_SHOWN_ERRORS]
    if len(errors) > len(shown):
        shown.append(f"and {len(errors) - len(shown)} more lines with errors")
    return "\n".join(shown)


def _lines(path: Path) -> list[bytes]:
    try:
        if path.is_dir():
            raise DataError(f"{path}: this is a directory; name a file of prompts")
        if path.exists() and not path.is_file():
            # A pipe or a device may never end, and cannot be read a second time.
            raise DataError(f"{path}: not a regular file; name a file of prompts")
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot read the prompts: {error.strerror}") from error
    encoding = next((name for mark, name in _ENCODINGS if data.startswith(mark)), None)
    if encoding is None and b"\0" in data[:4]:
        encoding = "UTF-16 or UTF-32"
    if encoding is not None:
        raise DataError(f"{path}:1: the file is encoded in {encoding}; save it as UTF-8")
    # Bytes are split, not text: U+2028 and its like may stand inside a JSON string.
    return data.removeprefix(codecs.BOM_UTF8).split(b"\n")


def _prompt(number: int, raw: bytes) -> PromptLine:
    fields = _object(raw)
    messages = _messages(_required(fields), last="user")
    rubric = _rubric(fields.pop("rubric")) if "rubric" in fields else None
    return PromptLine(number, messages, fields, rubric, conversation_key(messages))


def _required(fields: dict[str, object]) -> object:
    if "messages" not in fields:
        raise _BadLineError('the field "messages" is missing')
    return fields.pop("messages")


def _rubric(value: object) -> str:
    if not isinstance(value, str):
        raise _BadLineError(f'"rubric" must be a string, not {_kind(value)}')
    if not value.strip():
        raise _BadLineError('"rubric" is empty; leave the field out where there is none')
    return value


def conversation_key(messages: tuple[Message, ...]) -> str:
    """A short name of a conversation: the start of the SHA-256 of its messages as JSON."""
    canonical = json.dumps(
        [[message.role, message.content] for message in messages], separators=(",", ":")
    )
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _object(raw: bytes) -> dict[str, object]:
    value = _parse(_decoded(raw).strip(" \t\r"))
    if not isinstance(value, dict):
        raise _BadLineError(f"the line is {_kind(value)}; it must be one JSON object")
    if _deeper(value, _NESTING):
        raise _BadLineError(f"the JSON is nested too deeply; {_NESTING} levels are the limit")
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise _BadLineError(
            "a \\u escape is half of a surrogate pair, which is no character"
        ) from None
    return cast("dict[str, object]", value)


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _BadLineError(
            f"byte {error.start + 1} of the line (0x{raw[error.start]:02x}) is not UTF-8; "
            "save the file as UTF-8"
        ) from None


def _deeper(value: object, levels: int) -> bool:
    """Whether arrays and objects stand in each other more than ``levels`` deep."""
    layer = [value]
    for _ in range(levels):
        inner = [list(v.values()) if isinstance(v, dict) else v for v in layer]
        layer = [w for v in inner if isinstance(v, list) for w in v]
        if not layer:
            return False
    return any(isinstance(v, dict | list) for v in layer)


def _parse(text: str) -> object:
    try:
        return cast(
            "object",
            json.loads(
                text,
                object_pairs_hook=_unique,
                parse_constant=_no_constant,
                parse_float=_finite,
            ),
        )
    except json.JSONDecodeError as error:
        raise _BadLineError(_syntax(text, error)) from None
    except RecursionError:
        raise _BadLineError("the JSON is nested too deeply") from None
    except ValueError as error:
        # The only other one: an integer with thousands of digits.
        raise _BadLineError(f"a number cannot be read: {error}") from None


def _syntax(text: str, error: json.JSONDecodeError) -> str:
    if text in ("[", "]", "],"):
        return "the line is a part of a JSON array; write one JSON object a line, without brackets"
    before = text[: error.pos].rstrip()
    at_comma = text[error.pos : error.pos + 1] == "," and error.msg != "Expecting value"
    if at_comma or (before.endswith(",") and text[error.pos : error.pos + 1] in ("}", "]")):
        return f"not JSON: there is a trailing comma near column {error.pos + 1}"
    return f"not JSON: {error.msg} at column {error.pos + 1}"


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields: dict[str, object] = {}
    for key, value in pairs:
        if key in fields:
            raise _BadLineError(f'the key "{key}" stands twice in one object')
        fields[key] = value
    return fields


def _no_constant(name: str) -> NoReturn:
    raise _BadLineError(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _BadLineError(f"the number {digits} is too large")
    return value


def _messages(value: object, *, last: Role) -> tuple[Message, ...]:
    if not isinstance(value, list):
        raise _BadLineError(f'"messages" must be an array, not {_kind(value)}')
    if not value:
        raise _BadLineError('"messages" is empty')
    messages = tuple(_message(number, item) for number, item in enumerate(value, start=1))
    _check_turns(messages, last)
    return messages


def _message(number: int, item: object) -> Message:
    if not isinstance(item, dict):
        raise _BadLineError(f"message {number} must be an object, not {_kind(item)}")
    unknown = [key for key in item if key not in ("role", "content")]
    if unknown:
        raise _BadLineError(
            f'message {number} has the unknown key "{unknown[0]}"; it takes "role" and "content"'
        )
    role, content = item.get("role"), item.get("content")
    if role not in ("system", "user", "assistant"):
        found = "no role" if role is None else f"the role {json.dumps(role, ensure_ascii=False)}"
        raise _BadLineError(
            f'message {number} has {found}; roles are "system", "user" and "assistant"'
        )
    if not isinstance(content, str):
        found = "missing" if "content" not in item else _kind(content)
        raise _BadLineError(f'message {number}: "content" must be a string, and is {found}')
    if not content.strip():
        raise _BadLineError(f'message {number} ({role}): "content" is empty')
    return Message(cast("Role", role), content)


def _check_turns(messages: tuple[Message, ...], last: Role) -> None:
    """A system message may come first; then user and assistant alternate, and ``last`` ends."""
    start = 1 if messages[0].role == "system" else 0
    for index, message in enumerate(messages[start:]):
        expected = "assistant" if index % 2 else "user"
        if message.role != expected:
            raise _BadLineError(
                f"message {start + index + 1} has the role {message.role} where {expected} must "
                "come: user and assistant alternate, after at most one system message"
            )
    if messages[-1].role != last:
        raise _BadLineError(
            f"the conversation ends with the role {messages[-1].role}; it must end with {last}"
        )


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"
