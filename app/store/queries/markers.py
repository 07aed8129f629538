"""What happened at certain updates of a run, for the lines across its charts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from app.store.models import Event, Segment, Update
from app.store.queries.metrics import reached
from app.store.visible import visible_in

Happening = Literal["evaluation", "checkpoint", "resume"]
AT_MOST = 300
"""Of each kind, the newest: more lines than that are no lines any more."""


@dataclass(frozen=True, slots=True)
class Marker:
    """``steps``, ``tokens`` and ``time`` are those reached by the update, where they are known."""

    kind: Happening
    update: int
    steps: int | None
    tokens: int | None
    time: float | None


def markers_of(session: Session, run_id: int) -> list[Marker]:
    """In order of the updates; what a later segment has superseded is left out."""
    found: dict[Happening, Iterable[int]] = {
        "evaluation": session.scalars(
            select(Update.update)
            .where(visible_in(session, run_id, Update), Update.kind == "evaluation")
            .order_by(Update.update.desc())
            .limit(AT_MOST)
        ),
        "checkpoint": session.scalars(
            select(Event.update)
            .outerjoin(Segment, Segment.id == Event.segment_id)
            .where(Event.run_id == run_id, Event.code == "checkpoint", Event.level == "info")
            .where(or_(Segment.visible_until.is_(None), Event.update <= Segment.visible_until))
            .order_by(Event.id.desc())
            .limit(AT_MOST)
        ),
        "resume": session.scalars(
            select(Segment.resumed_from)
            .where(Segment.run_id == run_id)
            .order_by(Segment.number.desc())
            .limit(AT_MOST)
        ),
    }
    updates = {
        (update, kind) for kind, some in found.items() for update in some if update is not None
    }
    axes = reached(session, run_id, {update for update, _ in updates})
    return [
        Marker(kind, update, *axes.get(update, (None, None, None)))
        for update, kind in sorted(updates)
    ]


def began(session: Session, run_id: int) -> float | None:
    """When the first update of the run ended, in Unix seconds."""
    return session.scalar(
        select(Update.at)
        .where(visible_in(session, run_id, Update), Update.kind == "train")
        .order_by(Update.update)
        .limit(1)
    )
