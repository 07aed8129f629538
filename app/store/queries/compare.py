"""Several runs side by side: which there are to choose from, and what they measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from sqlalchemy import Select, exists, func, select
from sqlalchemy.orm import Session

from app.store.models import Metric, MetricName, Run, Update
from app.store.queries.metrics import recent_values
from app.store.queries.runs import last_figure
from app.store.status import DELETING
from app.store.visible import visible_in

_SHOWN = 200
_RECENT = 10


@dataclass(frozen=True, slots=True)
class Choice:
    """A run as a list of runs to choose from shows it. ``started_at`` is in Unix seconds."""

    id: int
    name: str
    algorithm: str
    model: str
    status: str
    last_reward: float | None
    sparkline: Sequence[float | None]
    completed: int
    started_at: float | None

    @property
    def last(self) -> float | None:
        """Its last mean reward, or loss."""
        return last_figure(self.algorithm, self.last_reward, self.sparkline)


def choices(session: Session, limit: int = _SHOWN) -> list[Choice]:
    """The newest runs that have started, the newest first."""
    columns = [getattr(Run, name) for name in Choice.__dataclass_fields__]
    rows = session.execute(
        select(*columns)
        .where(Run.started_at.is_not(None), Run.status != DELETING)
        .order_by(Run.id.desc())
        .limit(limit)
    )
    return [Choice(*row) for row in rows]


def metrics_of(session: Session, runs: Sequence[int]) -> list[str]:
    """The metrics that at least one of the runs has numbers of, in order of the names."""
    measured = exists().where(Metric.name_id == MetricName.id, Metric.run_id.in_(runs))
    return list(session.scalars(select(MetricName.name).where(measured).order_by(MetricName.name)))


@dataclass(frozen=True, slots=True)
class Course:
    """How a metric went in one run: over the updates ``first`` to ``last``, its extremes, the
    newest value, and the mean of the newest ``recent`` ones."""

    first: int
    last: int
    lowest: float | None
    highest: float | None
    newest: float | None
    mean: float | None
    recent: int


def course_of(session: Session, run_id: int, name: str, recent: int = _RECENT) -> Course | None:
    """The mean is over the ``recent`` newest updates that have the metric, without the evaluation
    before training, update 0. None where the run has no number of it."""
    first, last, lowest, highest = session.execute(
        _values(
            session, run_id, name,
            func.min(Metric.update), func.max(Metric.update),
            func.min(Metric.value), func.max(Metric.value),
        )
    ).one()  # fmt: skip
    if first is None:
        return None
    newest = recent_values(session, run_id, name, recent)
    numbers = [value for update, value in newest if update and value is not None]
    return Course(
        first=first,
        last=last,
        lowest=lowest,
        highest=highest,
        newest=newest[-1][1] if newest else None,
        mean=fmean(numbers) if numbers else None,
        recent=len(numbers),
    )


def first_at(session: Session, run_id: int, name: str, value: float) -> int | None:
    """The first update at which the metric had ``value``."""
    asked = _values(session, run_id, name, func.min(Metric.update)).where(Metric.value == value)
    found: int | None = session.scalar(asked)
    return found


def tokens_of(session: Session, run_id: int) -> int:
    """Tokens that its updates sampled, or learnt."""
    asked = select(func.max(Update.tokens)).where(visible_in(session, run_id, Update))
    return session.scalar(asked) or 0


def values_at(
    session: Session, run_id: int, name: str, updates: Sequence[int]
) -> dict[int, float | None]:
    """The metric's value at those of ``updates`` that have one."""
    asked = _values(session, run_id, name, Metric.update, Metric.value)
    rows = session.execute(asked.where(Metric.update.in_(updates)))
    return {update: value for update, value in rows}  # noqa: C416  rows


def _values(session: Session, run_id: int, name: str, *columns: Any) -> Select[Any]:  # noqa: ANN401
    number = select(MetricName.id).where(MetricName.name == name).scalar_subquery()
    return select(*columns).where(visible_in(session, run_id, Metric), Metric.name_id == number)
