"""Two texts side by side: which words one has and the other has not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import SequenceMatcher

from app.routes.reading.text import Run, runs_of

MOST_WORDS = 4000
"""Of each text; what comes after them is shown and not compared."""

# A word, or one letter of a script that puts no spaces between words, or a sign, or white space.
_WORDS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W\u3040-\u9fff]+|\s+|\S")


@dataclass(frozen=True, slots=True)
class Stretch:
    """``changed``: the other text has not got it here."""

    runs: tuple[Run, ...]
    changed: bool


@dataclass(frozen=True, slots=True)
class Differences:
    """``alike`` is the share of words, of both texts, that are the same. ``left`` and ``right``
    are how many words are not compared."""

    first: tuple[Stretch, ...]
    second: tuple[Stretch, ...]
    alike: float
    left: int
    right: int


def differences(first: str, second: str) -> Differences:
    one, other = _WORDS.findall(first), _WORDS.findall(second)
    a, b = one[:MOST_WORDS], other[:MOST_WORDS]
    start = _common(a, b)
    a, b = a[start:], b[start:]
    end = _common(a[::-1], b[::-1])
    tail = a[len(a) - end :]
    a, b = a[: len(a) - end], b[: len(b) - end]
    left, right = [("".join(one[:start]), False)], [("".join(one[:start]), False)]
    same = _said(one[:start]) + _said(tail)
    # Above 200 words it passes over those that are everywhere, without which it would be slow.
    for tag, i, j, k, m in SequenceMatcher(None, a, b).get_opcodes():
        left.append(("".join(a[i:j]), tag != "equal"))
        right.append(("".join(b[k:m]), tag != "equal"))
        same += _said(a[i:j]) if tag == "equal" else 0
    count = _said(one[:MOST_WORDS]) + _said(other[:MOST_WORDS])
    for side, words in ((left, one), (right, other)):
        side += [("".join(tail), False), ("".join(words[MOST_WORDS:]), False)]
    return Differences(
        first=_stretches(left),
        second=_stretches(right),
        alike=2 * same / count if count else 1.0,
        left=max(0, len(one) - MOST_WORDS),
        right=max(0, len(other) - MOST_WORDS),
    )


def _said(words: list[str]) -> int:
    """How many of them are not white space."""
    return sum(not word.isspace() for word in words)


def _common(first: list[str], second: list[str]) -> int:
    """How many words at the beginning are the same."""
    for index, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return index
    return min(len(first), len(second))


def _stretches(parts: list[tuple[str, bool]]) -> tuple[Stretch, ...]:
    return tuple(Stretch(runs_of(text), changed) for text, changed in parts if text)
