"""Whether an answer goes round in circles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

from trainer.health.words import WORD, sizes

GRAM_WORDS = 4
GRAM_TIMES = 3
# Long honest answers come back to some four words ("for i in range", "at the end of") without
# being made of them.
LEAST_SHARE = 0.2


def is_repetitive(pieces: Sequence[str]) -> bool:
    """Whether some stretch of four words occurs at least three times, overlaps included, and such
    stretches make up at least a fifth of the answer.

    Stretches of nothing but numbers do not count, since tables repeat them honestly; the numbers of
    a loop do (``trainer.health.words``). Time grows linearly with the answer.
    """
    grams = list(_grams(pieces))
    often = {gram for gram, times in Counter(grams).items() if times >= GRAM_TIMES}
    often = {gram for gram in often if not all(map(str.isdecimal, gram))}
    if not often:
        return False
    covered = end = 0
    for start, gram in enumerate(grams):
        if gram in often:
            covered += start + len(gram) - max(start, end)
            end = start + len(gram)
    return covered >= LEAST_SHARE * len(pieces)


def _grams(pieces: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """From each piece on, as many as make four words."""
    if all(map(str.isascii, pieces)):
        yield from zip(*(islice(pieces, i, None) for i in range(GRAM_WORDS)), strict=False)
        return
    size = sizes(pieces)
    end = held = 0
    for start in range(len(pieces)):
        while held < GRAM_WORDS * WORD and end < len(pieces):
            held += size[end]
            end += 1
        if held < GRAM_WORDS * WORD:
            return
        yield tuple(pieces[start:end])
        held -= size[start]
