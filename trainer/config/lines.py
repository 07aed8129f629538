"""Where each key of a TOML file stands: ``tomllib`` returns values without their lines."""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

KeyPath = tuple[str, ...]

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*+")
_OPEN_HEADER = re.compile(r"\[\[?[ \t]*+")
_CLOSE_HEADER = re.compile(r"[ \t]*+\]\]?")
_KEY_PART = re.compile(r"""[A-Za-z0-9_-]++|"(?:[^"\\]|\\.)*+"|'[^']*+'""")
_DOT = re.compile(r"[ \t]*+\.[ \t]*+")
_EQUALS = re.compile(r"[ \t]*+=[ \t]*+")
_SCALAR = re.compile(
    r'''"""(?:[^"\\]|\\.|"(?!""))*+""""{0,2}'''
    r"""|'''(?:[^']|'(?!''))*+''''{0,2}"""
    r"""|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+'|[^,\]}#\n]++""",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Mark:
    """A key or a header: its line, counted from 1, and the value as written (none for a table)."""

    line: int
    value: str | None


@dataclass(frozen=True, slots=True)
class LineIndex:
    """The marks of one file by key path."""

    marks: Mapping[KeyPath, Mark]

    def line(self, path: KeyPath) -> int | None:
        """The line of ``path``, or of the nearest table around it; none when there is neither."""
        for length in range(len(path), 0, -1):
            mark = self.marks.get(path[:length])
            if mark is not None:
                return mark.line
        return None

    def value(self, path: KeyPath) -> str | None:
        """The value of ``path`` as the file writes it; none for a table or an absent key."""
        mark = self.marks.get(path)
        return None if mark is None else mark.value


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a configuration comes from.

    ``source`` is the file's absolute path and ``shown`` the path as the user gave it. ``flags``
    names the command-line option that set a key in place of the file.
    """

    source: Path
    shown: str
    lines: LineIndex
    flags: Mapping[KeyPath, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.source.parent

    def where(self, path: KeyPath) -> str:
        """``file:line`` of a key, the file alone when it is not there, or the option's name."""
        if path in self.flags:
            return self.flags[path]
        line = self.lines.line(path)
        return self.shown if line is None else f"{self.shown}:{line}"


def line_index(text: str) -> LineIndex:
    """Find the keys of ``text``, which ``tomllib`` must have accepted and whose lines end in
    ``\\n``. What an array holds is not indexed, and the tables of an array of tables share a
    path: no section of a configuration is an array."""
    return LineIndex(_Scanner(text).scan())


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._marks: dict[KeyPath, Mark] = {}
        self._newlines = [found.start() for found in re.finditer("\n", text)]

    def scan(self) -> dict[KeyPath, Mark]:
        table: KeyPath = ()
        self._take(_BLANK)
        while self._position < len(self._text):
            if self._peek() == "[":
                table = self._header()
            else:
                self._pair(table)
            self._take(_BLANK)
        return self._marks

    def _header(self) -> KeyPath:
        start = self._position
        self._take(_OPEN_HEADER)
        path = self._key()
        self._take(_CLOSE_HEADER)
        self._mark(path, start, None)
        return path

    def _pair(self, table: KeyPath | None) -> None:
        """A key and its value; ``table`` is none inside an array, where nothing is marked."""
        start = self._position
        key = self._key()
        self._take(_EQUALS)
        path = None if table is None else table + key
        if self._peek() == "{":
            if path is not None:
                self._mark(path, start, None)
            self._inline_table(path)
            return
        value = self._value()
        if path is not None:
            self._mark(path, start, value)

    def _value(self) -> str:
        start = self._position
        if self._peek() == "[":
            self._array()
        elif self._peek() == "{":
            self._inline_table(None)
        else:
            return self._take(_SCALAR).rstrip(" \t\r")
        return self._text[start : self._position]

    def _array(self) -> None:
        self._position += 1
        self._take(_BLANK)
        while self._peek() != "]":
            self._value()
            self._separator()
        self._position += 1

    def _inline_table(self, path: KeyPath | None) -> None:
        self._position += 1
        self._take(_BLANK)
        while self._peek() != "}":
            self._pair(path)
            self._separator()
        self._position += 1

    def _separator(self) -> None:
        self._take(_BLANK)
        if self._peek() == ",":
            self._position += 1
            self._take(_BLANK)

    def _key(self) -> KeyPath:
        parts = [self._key_part()]
        while _DOT.match(self._text, self._position):
            self._take(_DOT)
            parts.append(self._key_part())
        return tuple(parts)

    def _key_part(self) -> str:
        part = self._take(_KEY_PART)
        if part[0] not in "\"'":
            return part
        value: str = tomllib.loads(f"key = {part}")["key"]
        return value

    def _mark(self, path: KeyPath, start: int, value: str | None) -> None:
        line = bisect_left(self._newlines, start) + 1
        for length in range(1, len(path)):
            self._marks.setdefault(path[:length], Mark(line, None))
        present = self._marks.get(path)
        # A header below an earlier [a.b] is where the reader looks for [a].
        if present is None or (value is None and present.value is None):
            self._marks[path] = Mark(line, value)

    def _peek(self) -> str:
        return self._text[self._position : self._position + 1]

    def _take(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._position)
        if found is None:
            raise AssertionError(f"no {pattern.pattern!r} at offset {self._position}")
        self._position = found.end()
        return found.group()
