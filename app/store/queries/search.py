"""Words looked for in every prompt and answer of a run."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.store.models import Answer, Group, Prompt
from app.store.queries.trajectories import AnswerRow, answer_rows, as_row
from app.store.search import matches, newest
from app.store.visible import visible, visible_in

PAGE = 50
PROMPTS = 20
_PREFIX_CHARS = 3
_AROUND = 90
"""Characters of context on either side of the first word found."""


@dataclass(frozen=True, slots=True)
class Piece:
    text: str
    found: bool


@dataclass(frozen=True, slots=True)
class AnswerHit:
    answer: AnswerRow
    snippet: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class PromptHit:
    """A prompt, and the last time it was answered."""

    prompt_id: int
    snippet: tuple[Piece, ...]
    update: int
    kind: str
    group: int


@dataclass(frozen=True, slots=True)
class Hits:
    """``prompts`` come with the first page only; ``before`` is where the next page begins."""

    prompts: tuple[PromptHit, ...]
    answers: tuple[AnswerHit, ...]
    before: int | None


def asked(words: str) -> str:
    """What a person typed, with its last word, unless quoted, as the beginning of one."""
    words = " ".join(words.replace("\0", " ").split())
    last = words.rpartition(" ")[2]
    if words.count('"') % 2 == 0 and last[-1:].isalnum():
        # So few letters begin so many words that an index of them takes seconds to read.
        long_enough = len(last) >= _PREFIX_CHARS or not last.isascii()
        return words + "*" if long_enough else words
    return words


def search(
    session: Session, run_id: int, words: str, before: int | None = None, limit: int = PAGE
) -> Hits:
    """Prompts and answers with all of ``words``, newest first; ``before`` is the id that the page
    before returned."""
    wanted = asked(words)
    pattern = _pattern(wanted)
    numbers = _newest(session, run_id, wanted, before, limit + 1)
    rows = session.execute(
        answer_rows().where(Answer.id.in_(numbers[:limit])).order_by(Answer.id.desc())
    )
    answers = [as_row(*row) for row in rows]
    hits = tuple(AnswerHit(answer, snippet(answer.text or "", pattern)) for answer in answers)
    prompts = _prompts(session, run_id, wanted, pattern) if before is None else ()
    return Hits(prompts, hits, numbers[limit - 1] if len(numbers) > limit else None)


def _newest(
    session: Session, run_id: int, wanted: str, before: int | None, limit: int
) -> list[int]:
    """Ids of the run's newest answers that count and have the words."""
    # Asked one by one, each is a look at one end of an index.
    lowest, highest = (
        session.scalar(select(end(Answer.id)).where(Answer.run_id == run_id))
        for end in (func.min, func.max)
    )
    if lowest is None or highest is None:
        return []
    below = highest + 1 if before is None else before
    found: list[int] = []
    at_once = limit
    while len(found) < limit:
        some = newest(session, wanted, lowest, below, at_once)
        if some is None:
            chosen = select(Answer.id).where(
                visible_in(session, run_id, Answer),
                Answer.id < below,
                matches(session, Answer, wanted),
            )
            return list(session.scalars(chosen.order_by(Answer.id.desc()).limit(limit)))
        # Others among them belong to runs at the same time, or were superseded. Naming the run in
        # the query would make SQLite look through all of its answers for them.
        own = select(Answer.id, Answer.run_id).where(Answer.id.in_(some), visible(Answer))
        ours = {row.id for row in session.execute(own) if row.run_id == run_id}
        found += [number for number in some if number in ours]
        if len(some) < at_once:
            break
        below, at_once = some[-1], min(2 * at_once, 2000)
    return found[:limit]


def _prompts(
    session: Session, run_id: int, wanted: str, pattern: re.Pattern[str] | None
) -> tuple[PromptHit, ...]:
    rows = session.execute(
        select(Prompt.id, Prompt.text)
        .where(Prompt.run_id == run_id, matches(session, Prompt, wanted))
        .order_by(Prompt.id)
        .limit(PROMPTS)
    ).all()
    last = select(func.max(Group.id)).where(
        visible(Group), Group.prompt_id.in_([row.id for row in rows])
    )
    places = {
        row.prompt_id: row
        for row in session.execute(
            select(Group.prompt_id, Group.update, Group.kind, Group.number).where(
                Group.id.in_(last.group_by(Group.prompt_id))
            )
        )
    }
    return tuple(
        PromptHit(row.id, snippet(row.text, pattern), place.update, place.kind, place.number)
        for row in rows
        if (place := places.get(row.id)) is not None
    )


def snippet(text: str, pattern: re.Pattern[str] | None) -> tuple[Piece, ...]:
    """The neighbourhood of the first word found, cut into what was found and what was not."""
    folded = _folded(text)
    first = pattern.search(folded) if pattern else None
    start = max(0, first.start() - _AROUND) if first else 0
    end = min(len(text), (first.end() if first else 0) + 2 * _AROUND)
    pieces = [Piece("…", found=False)] if start else []
    position = start
    for match in pattern.finditer(folded, start, end) if pattern else ():
        pieces.append(Piece(text[position : match.start()], found=False))
        pieces.append(Piece(text[match.start() : match.end()], found=True))
        position = match.end()
    pieces.append(Piece(text[position:end], found=False))
    if end < len(text):
        pieces.append(Piece("…", found=False))
    return tuple(piece for piece in pieces if piece.text)


def _pattern(wanted: str) -> re.Pattern[str] | None:
    """Each word of ``wanted`` where it begins a word, whatever its case and accents."""
    words = re.findall(r"\w+\*?", _folded(wanted))
    parts = [
        re.escape(word.rstrip("*")) + (r"\w*" if word.endswith("*") else r"\b") for word in words
    ]
    longest_first = sorted(set(parts), key=len, reverse=True)
    return re.compile(r"\b(?:" + "|".join(longest_first) + ")") if parts else None


def _folded(text: str) -> str:
    """Without case and accents, each character where it was."""
    if text.isascii():
        return text.lower()
    return "".join(map(_plain, text))


def _plain(char: str) -> str:
    if char.isascii():
        return char.lower()
    lower = unicodedata.normalize("NFKD", char)[:1].lower()
    return lower if len(lower) == 1 else char
