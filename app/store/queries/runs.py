"""The list of runs. It reads the table of runs and no other, however long they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, Select, func, or_, select
from sqlalchemy.orm import Session

from app.store.models import Run
from app.store.status import ACTIVE, ENDED, GROUPS, UNLISTED, seconds_taken
from trainer.health.headline import headline_of

Sort = Literal["newest", "oldest", "name", "reward", "longest"]
_PAGE = 100


@dataclass(frozen=True, slots=True)
class RunRow:
    """A line of the list. Times are Unix seconds; ``sparkline`` has None where there was no
    value; ``findings`` counts them."""

    id: int
    name: str
    algorithm: str
    model: str
    source: str
    status: str
    message: str
    completed: int
    planned: int
    stage: str
    stage_done: int
    stage_total: int
    last_reward: float | None
    last_evaluation: float | None
    seconds_per_update: float | None
    sparkline: Sequence[float | None]
    findings: int
    audited: Sequence[str]
    lost: int
    pulse: int
    created_at: float
    queued_at: float | None
    started_at: float | None
    idle_seconds: float
    ended_at: float | None
    heartbeat_at: float | None

    @property
    def is_open(self) -> bool:
        """Whether something will still happen to it."""
        return self.status not in ENDED

    @property
    def last(self) -> float | None:
        """Its last mean reward, or loss."""
        return last_figure(self.algorithm, self.last_reward, self.sparkline)

    @property
    def progress(self) -> float:
        """The share of its updates that are made."""
        return min(1.0, self.completed / self.planned) if self.planned else 0.0

    @property
    def seconds_left(self) -> float | None:
        """While it runs, as far as its last updates tell."""
        if self.status not in ACTIVE or self.seconds_per_update is None:
            return None
        return max(0, self.planned - self.completed) * self.seconds_per_update

    def seconds_taken(self, now: float) -> float | None:
        """While it was at work: to its end, or until ``now``."""
        return seconds_taken(self, now)


def last_figure(
    algorithm: str, last_reward: float | None, sparkline: Sequence[float | None]
) -> float | None:
    """Where a run stands in what it is about: its last mean reward or loss. A run of SFT that an
    earlier retrograd stored has the last point of its line alone."""
    if last_reward is not None or not headline_of(algorithm).lower_is_better:
        return last_reward
    return next((value for value in reversed(sparkline) if value is not None), None)


@dataclass(frozen=True, slots=True)
class RunPage:
    """Some of ``total`` runs, from the ``offset``-th on."""

    rows: Sequence[RunRow]
    total: int
    offset: int
    limit: int

    @property
    def has_more(self) -> bool:
        return self.offset + len(self.rows) < self.total


_SENT = [name for name in RunRow.__dataclass_fields__ if name != "findings"]


def list_runs(
    session: Session,
    *,
    text: str = "",
    status: str = "",
    sort: Sort = "newest",
    limit: int = _PAGE,
    offset: int = 0,
) -> RunPage:
    """Runs whose name, model or algorithm holds each word of ``text``, in any case, and that have
    ``status`` (one of them, or a word of `GROUPS`; empty for all). Drafts are no runs yet, and what
    is being deleted is one no more."""
    conditions = [Run.status.not_in(UNLISTED), *_holding(text)]
    if status:
        conditions.append(Run.status.in_(GROUPS.get(status, (status,))))
    total = session.scalar(select(func.count()).select_from(Run).where(*conditions)) or 0
    found = session.execute(
        _columns().where(*conditions).order_by(*_order(sort)).limit(limit).offset(offset)
    )
    return RunPage([_row(values) for values in found], total, offset, limit)


def get_run(session: Session, run_id: int) -> Run | None:
    """The whole row."""
    return session.get(Run, run_id)


def ids_named(session: Session, name: str) -> list[int]:
    """The runs of any list that are called ``name``, the oldest first."""
    asked = select(Run.id).where(Run.name == name, Run.status.not_in(UNLISTED)).order_by(Run.id)
    return list(session.scalars(asked))


def count_by_status(session: Session) -> dict[str, int]:
    """How many runs have each status that occurs, those that no list shows left out."""
    listed = Run.status.not_in(UNLISTED)
    counted = select(Run.status, func.count()).where(listed).group_by(Run.status)
    return {status: count for status, count in session.execute(counted)}  # noqa: C416  rows


def _columns() -> Select[Any]:
    return select(*(getattr(Run, name) for name in _SENT), Run.findings)


def _row(values: Any) -> RunRow:  # noqa: ANN401  a row of the columns above
    known = dict(zip(_SENT, values, strict=False))
    return RunRow(**known, findings=len(values[-1]))


def _holding(words: str) -> list[ColumnElement[bool]]:
    return [
        or_(
            *(
                column.icontains(word, autoescape=True)
                for column in (Run.name, Run.model, Run.algorithm)
            )
        )
        for word in words.split()
    ]


def _order(sort: Sort) -> tuple[ColumnElement[Any], ...]:
    newest = Run.id.desc()
    match sort:
        case "oldest":
            return (Run.id.asc(),)
        case "name":
            return (func.lower(Run.name), newest)
        case "reward":
            # A loss is no reward: runs of SFT come last.
            return (Run.algorithm == "sft", Run.last_reward.desc().nulls_last(), newest)
        case "longest":
            end = func.coalesce(Run.ended_at, Run.heartbeat_at)
            taken = end - Run.started_at - Run.idle_seconds
            return (taken.desc().nulls_last(), newest)
    return (newest,)
