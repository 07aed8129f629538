"""The journal of a run: events, oldest first, by cursor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.orm import Session

from app.store.models import Event

Level = Literal["info", "warning", "error"]
_AT_LEAST: dict[Level, tuple[str, ...]] = {
    "info": (),
    "warning": ("warning", "error"),
    "error": ("error",),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the journal; ``at`` is in Unix seconds, ``update`` the one that it is about."""

    id: int
    at: float
    level: str
    code: str
    message: str
    update: int | None
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Entries:
    """Some of the journal. ``older`` and ``newer`` tell whether there is more on either side."""

    rows: Sequence[Entry]
    older: bool
    newer: bool


def entries(
    session: Session,
    run_id: int,
    *,
    level: Level = "info",
    text: str = "",
    after: int | None = None,
    before: int | None = None,
    limit: int = 200,
) -> Entries:
    """The events of at least ``level`` whose message or code holds each word of ``text``, in any
    case: the newest ones, or the first ones after the id ``after``, or the last ones before the id
    ``before``."""
    wanted = _wanted(run_id, level, text)
    columns = [getattr(Event, name) for name in Entry.__dataclass_fields__]
    asked = select(*columns).where(*wanted).limit(limit)
    if after is not None:
        asked = asked.where(Event.id > after).order_by(Event.id)
        rows = [Entry(*row) for row in session.execute(asked)]
    else:
        if before is not None:
            asked = asked.where(Event.id < before)
        found = session.execute(asked.order_by(Event.id.desc()))
        rows = [Entry(*row) for row in found][::-1]
    first = rows[0].id if rows else after
    last = rows[-1].id if rows else before
    if not rows:  # the cursor itself is on the one side
        first = None if first is None else first + 1
        last = None if last is None else last - 1
    return Entries(
        rows,
        older=first is not None and _any(session, wanted, Event.id < first),
        newer=last is not None and _any(session, wanted, Event.id > last),
    )


def count_by_level(session: Session, run_id: int) -> dict[str, int]:
    rows = session.execute(
        select(Event.level, func.count()).where(Event.run_id == run_id).group_by(Event.level)
    )
    return {level: count for level, count in rows}  # noqa: C416  rows


def _wanted(run_id: int, level: Level, text: str) -> list[ColumnElement[bool]]:
    wanted: list[ColumnElement[bool]] = [Event.run_id == run_id]
    if levels := _AT_LEAST[level]:
        wanted.append(Event.level.in_(levels))
    for word in text.split():
        holding = (c.icontains(word, autoescape=True) for c in (Event.message, Event.code))
        wanted.append(or_(*holding))
    return wanted


def _any(
    session: Session, wanted: Sequence[ColumnElement[bool]], more: ColumnElement[bool]
) -> bool:
    return session.scalar(select(Event.id).where(*wanted, more).limit(1)) is not None
