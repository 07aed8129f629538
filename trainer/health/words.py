"""What counts as a word of an answer, whatever its script.

A word is a run of letters and digits, with the apostrophes and accents inside it. Three things are
read otherwise:

- Scripts that put no spaces between words: a Chinese character or a kana is half a word, a letter
  of Thai, Lao, Burmese or Khmer a quarter, which is about how long words are there.
- A loop, that is at most 16 characters written at least 16 times in a row (``7777777777777777``,
  ``12, 12, 12, …``): each time is a word, also inside what looks like one long word.
- An answer that is nothing but one thing written at least 6 times (``aaaa aaaa``, ``hahahahahaha``,
  ``!!!!!!!!``): the same.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence

import numpy as np

LOOP_LENGTH = 16
LOOP_TIMES = 16
WHOLE_TIMES = 6  # six equal words in a row hold the same four words three times
WHOLE_LENGTH = 8  # characters; what is shorter, like 111111, may well be an honest answer
WORD = 4  # the size of a word: sizes count in quarters, so that their sums are exact
HALF = 2
QUARTER = 1

_LOOP_MARK = "\0"
_APOSTROPHES = {ord(sign): "'" for sign in "\u2018\u2019\u201b\u02bc\u00b4`\u2032"}


def _class(is_in: Callable[[str], bool], *spans: tuple[int, int]) -> str:
    """The characters of ``spans`` that ``is_in`` accepts, as what stands in a regular
    expression's brackets."""
    ranges: list[list[int]] = []
    for code in (code for first, last in spans for code in range(first, last + 1)):
        if not is_in(chr(code)):
            continue
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(f"\\u{first:04x}-\\u{last:04x}" for first, last in ranges)


def _is_mark(sign: str) -> bool:
    return unicodedata.category(sign) in ("Mn", "Mc")


# Python's \w leaves combining marks out, which would cut words of Hindi or Thai in pieces.
_MARKS = _class(_is_mark, (0x300, 0x1DFF), (0x20D0, 0x20FF), (0x3099, 0x309A), (0xA800, 0xABFF))
_HALVES = (
    _class(str.isalnum, (0x3005, 0x3007), (0x3041, 0x30FF), (0x31F0, 0x31FF))
    + "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_QUARTERS = _class(str.isalpha, (0x0E01, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF))
_LETTERS = rf"(?:[^\W_{_HALVES}{_QUARTERS}]++[{_MARKS}]*+)++"
_PIECE = re.compile(rf"{_LETTERS}(?:'{_LETTERS})*|[{_HALVES}][{_MARKS}]*|[{_QUARTERS}][{_MARKS}]*")
_PIECE_OF_ASCII = re.compile(r"[^\W_]++(?:'[^\W_]++)*")
_HALF_PIECE = re.compile(f"[{_HALVES}]")
_QUARTER_PIECE = re.compile(f"[{_QUARTERS}]")


def normal(text: str) -> str:
    """``text`` with compatibility forms and letter case folded, and one kind of apostrophe."""
    return unicodedata.normalize("NFKC", text.translate(_APOSTROPHES)).casefold()


def plain_pieces(text: str) -> Iterator[str]:
    """The pieces of a ``normal`` text, without regard to loops: words, and single letters of the
    scripts without spaces."""
    pattern = _PIECE_OF_ASCII if text.isascii() else _PIECE
    return map(re.Match.group, pattern.finditer(text))


def pieces(text: str) -> list[str]:
    """The pieces of a ``normal`` text, in order, those of loops with a NUL before them. The time
    it takes grows linearly with the text."""
    text = text.replace(_LOOP_MARK, " ")
    whole = _whole(text)
    if whole:
        return _looped(text, *whole)
    found: list[str] = []
    end = 0
    for start, stop, period in _loops(text):
        found.extend(plain_pieces(text[end:start]))
        unit = text[start : start + period]
        if any(map(str.isalnum, unit)):  # not the rules of a table, nor a row of dots
            found.extend(_looped(text[start:stop], unit, (stop - start) // period))
        end = stop
    found.extend(plain_pieces(text[end:]))
    return found


def sizes(read: Sequence[str]) -> list[int]:
    """How much of a word each piece is, in quarters."""
    return [_size(piece) for piece in read]


def word_count(read: Sequence[str]) -> float:
    """How many words the pieces make together, to a quarter."""
    if all(map(str.isascii, read)):
        return len(read)
    return sum(map(_size, read)) / WORD


def _size(piece: str) -> int:
    if piece.isascii():
        return WORD
    first = piece[1] if piece[0] == _LOOP_MARK else piece[0]
    if _HALF_PIECE.match(first):
        return HALF
    return QUARTER if _QUARTER_PIECE.match(first) else WORD


def _looped(text: str, unit: str, times: int) -> list[str]:
    """``text``, which is ``unit`` so many times: read word by word, or time by time where that
    gives more words."""
    read = [_LOOP_MARK + piece for piece in plain_pieces(text)]
    if word_count(read) >= times:
        return read
    return [_LOOP_MARK * 2 + unit] * times


def _whole(text: str) -> tuple[str, int] | None:
    """What the text, apart from its spaces, is nothing but the repetition of, and how often."""
    dense = "".join(text.split())
    size = len(dense)
    if size < WHOLE_LENGTH:
        return None
    # A period of the text is where its first half comes again; the smallest is where it first does.
    half = size // 2
    period = dense.find(dense[:half], 1, size // WHOLE_TIMES + half)
    if period < 0 or dense[period:] != dense[:-period]:
        return None
    return dense[:period], size // period


def _loops(text: str) -> list[tuple[int, int, int]]:
    """Start, end and period of the loops, in order; where periods compete, the smaller."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    taken = np.zeros(len(codes), dtype=bool)
    found: list[tuple[int, int, int]] = []
    for period in range(1, min(LOOP_LENGTH, len(codes) // LOOP_TIMES) + 1):
        least = period * (LOOP_TIMES - 1)
        same = codes[period:] == codes[:-period]
        if b"\1" * least not in same.tobytes():  # nearly always so, and soon known
            continue
        edges = np.concatenate(([-1], np.flatnonzero(~same), [len(same)]))
        for i in np.flatnonzero(np.diff(edges) > least):
            start, stop = int(edges[i]) + 1, int(edges[i + 1]) + period
            if not taken[start:stop].any():
                taken[start:stop] = True
                found.append((start, stop, period))
    return sorted(found)
