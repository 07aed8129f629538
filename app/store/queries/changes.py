"""What is new in the store since the last look, for whoever follows it.

Rows are only appended, so what is new has greater ids; each look reads the new rows and the pulses
of the runs in question, however large the store is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.store.models import Artifact, Event, Group, Metric, Run
from app.store.status import CHANGING

Kind = Literal["run", "metrics", "trajectories", "events", "artifacts", "runs"]
OF_A_RUN: tuple[Kind, ...] = ("run", "metrics", "trajectories", "events", "artifacts")

_TABLES: Mapping[Kind, type[Metric | Group | Event | Artifact]] = {
    "metrics": Metric,
    "trajectories": Group,
    "events": Event,
    "artifacts": Artifact,
}
# Where several write at once, a transaction may be kept after one with greater ids: rows of so many
# ids before the newest are looked at again.
_LOOK_BACK = 2000


@dataclass(frozen=True, slots=True)
class News:
    """``run_id`` is None for the list of runs. ``mark`` names the state that this came with."""

    run_id: int | None
    kind: Kind
    last_id: int
    mark: str


@dataclass(frozen=True, slots=True)
class Seen:
    """All that a look found; the next one tells what differs. ``newest`` are the tables' greatest
    ids, ``rows`` those of each run among the rows looked at, by kind, ``pulses`` those of the runs
    that are open or followed."""

    mark: str
    newest: Mapping[Kind, int]
    rows: Mapping[tuple[int, Kind], int] = field(default_factory=dict)
    pulses: Mapping[int, int] = field(default_factory=dict)


def mark_of(session: Session, run_id: int | None) -> str:
    """Names the state of a run, or of the list of runs: where it is the same, nothing has changed
    since. Empty where there is no such run."""
    if run_id is not None:
        pulse = session.scalar(select(Run.pulse).where(Run.id == run_id))
        return "" if pulse is None else str(pulse)
    count, newest = session.execute(select(func.count(Run.id), func.max(Run.id))).one()
    pulses = session.scalar(select(func.sum(Run.pulse)).where(Run.status.in_(CHANGING)))
    return f"{count}.{newest or 0}.{pulses or 0}"


def newest_ids(session: Session) -> dict[Kind, int]:
    """The greatest id of each table that has news."""
    return {kind: session.scalar(select(func.max(t.id))) or 0 for kind, t in _TABLES.items()}


def look(session: Session, before: Seen | None, followed: Iterable[int]) -> tuple[Seen, list[News]]:
    """What there is now, and how it differs from ``before``; ``followed`` are runs that are looked
    at although they have ended. The first look has no news."""
    newest = newest_ids(session)
    mark = mark_of(session, None)
    followed = set(followed)
    old = before.pulses if before else {}
    asked = followed | old.keys()
    found = session.execute(
        select(Run.id, Run.pulse, Run.status).where(Run.status.in_(CHANGING) | Run.id.in_(asked))
    ).all()
    pulses = {row.id: row.pulse for row in found}
    kept = {row.id: row.pulse for row in found if row.status in CHANGING or row.id in followed}
    if before is None:
        return Seen(mark, newest, {}, kept), []
    rows = _new_rows(session, before)
    news = [
        News(run_id, kind, last_id, str(pulses.get(run_id, "")))
        for (run_id, kind), last_id in rows.items()
        if before.rows.get((run_id, kind)) != last_id
    ]
    news += [
        News(run_id, "run", pulses.get(run_id, 0), str(pulses.get(run_id, "")))
        for run_id in asked | pulses.keys()
        if old.get(run_id) != pulses.get(run_id)
    ]
    if mark != before.mark or any(one.kind == "run" for one in news):
        news.append(News(None, "runs", newest["metrics"], mark))
    return Seen(mark, newest, rows, kept), news


def _new_rows(session: Session, before: Seen) -> dict[tuple[int, Kind], int]:
    back = 0 if session.get_bind().dialect.name == "sqlite" else _LOOK_BACK
    found: dict[tuple[int, Kind], int] = {}
    for kind, table in _TABLES.items():
        asked = (
            select(table.run_id, func.max(table.id))
            .where(table.id > before.newest[kind] - back)
            .group_by(table.run_id)
        )
        found |= {(run_id, kind): last_id for run_id, last_id in session.execute(asked)}
    return found
