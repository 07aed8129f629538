"""Strangers' text, shown exactly: what cannot be seen gets a sign that can."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

HEAD = 1200
"""Characters of a text that are always shown."""
WHOLE = 8000
"""Characters that are on the page at all; more on demand."""

_JOINERS = "\u200c\u200d"  # hold letters of some scripts, and emoji, together; they hide nothing
_CONTROLS = {
    "\0": "NULL",
    "\a": "BELL",
    "\b": "BACKSPACE",
    "\r": "CARRIAGE RETURN",
    "\x1b": "ESCAPE",
}
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch of text. ``name`` says what a sign stands for; it is empty for text as written."""

    text: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Shown:
    """A text in two parts: ``head``, and ``rest``, which is folded. ``left`` characters of it are
    not on the page; ``lost`` ones were not kept."""

    head: tuple[Run, ...]
    rest: tuple[Run, ...]
    rest_chars: int
    left: int
    lost: int


def runs_of(text: str) -> tuple[Run, ...]:
    """``text`` with a sign in the place of each character that shows nothing, or that changes how
    others are shown (control and direction characters)."""
    runs = []
    position = 0
    for match in _UNSEEN.finditer(text):
        if match.start() > position:
            runs.append(Run(text[position : match.start()]))
        runs.append(_sign(match[0]))
        position = match.end()
    if position < len(text) or not runs:
        runs.append(Run(text[position:]))
    return tuple(runs)


def _sign(char: str) -> Run:
    code = f"U+{ord(char):04X}"
    name = unicodedata.name(char, "") or _CONTROLS.get(char, "a control character")
    return Run("\\r" if char == "\r" else code, f"{code} {name}")


def shown(text: str, chars: int, *, whole: bool = False) -> Shown:
    """``text``, of which ``chars`` there were; ``whole`` puts all of it on the page."""
    lost = max(0, chars - len(text))
    if len(text) <= HEAD * 5 // 4:
        return Shown(runs_of(text), (), 0, 0, lost)
    cut = _good_cut(text)
    end = len(text) if whole else min(len(text), WHOLE)
    return Shown(runs_of(text[:cut]), runs_of(text[cut:end]), end - cut, len(text) - end, lost)


def _good_cut(text: str) -> int:
    """Near ``HEAD``: after a line, or else after a word, or else anywhere."""
    for mark in ("\n", " "):
        found = text.rfind(mark, HEAD * 3 // 4, HEAD)
        if found >= 0:
            return found + 1
    return HEAD
