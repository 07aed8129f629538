"""A run's numbers over its updates, as curves: thinned to what a screen can show, and followed by
a cursor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import ScalarSelect, func, select
from sqlalchemy.orm import Session

from app.store.database import Store
from app.store.models import Metric, MetricName, Segment, Update
from app.store.queries.series import NOTHING, AllSeries, Floats, Place, Series, series_of
from app.store.queries.thinning import thinned
from app.store.visible import visible, visible_in

_ASKED_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Curve:
    """Columns, one row for each point, in order of the updates. ``steps`` (optimizer steps),
    ``tokens`` (sampled) and ``times`` (Unix seconds) are those reached by then; null where the
    update's own row is missing. ``values`` are null where they were not finite.

    Where the curve is ``thinned``, each bucket of updates kept its extremes and its last value, and
    ``means`` has the mean of the bucket in its last row, null elsewhere; otherwise ``means`` are
    the values. ``total`` counts the rows that it was made of, ``nonfinite`` those without a value.
    """

    name: str
    updates: list[int]
    steps: list[int | None]
    tokens: list[int | None]
    times: list[float | None]
    values: list[float | None]
    means: list[float | None]
    total: int
    nonfinite: int
    thinned: bool


@dataclass(frozen=True, slots=True)
class Curves:
    """``last_id`` is the cursor to go on from, and ``segment`` the run's newest: where that has
    changed, rows that were seen before may have been superseded, and all is to be read anew."""

    curves: list[Curve]
    last_id: int
    segment: int


@dataclass(frozen=True, slots=True)
class LastValue:
    """A metric's name with the newest number of it."""

    name: str
    update: int
    value: float | None


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One number, with all that its update is told by."""

    name: str
    update: int
    steps: int | None
    tokens: int | None
    at: float | None
    value: float | None


def curves_of(
    session: Session,
    run_id: int,
    names: Sequence[str],
    *,
    first: int | None = None,
    last: int | None = None,
    points: int = 600,
    after: int | None = None,
    kept: AllSeries | None = None,
) -> Curves:
    """The curves of ``names`` over the updates ``first`` to ``last`` (None: from the start, to the
    end), of at most ``points`` rows each; or, with the cursor ``after``, all rows that came later.
    Names that the run has no numbers of have empty curves. What is ``kept`` is not read again."""
    kept = kept or AllSeries()
    place = Place(_newest_segment(session, run_id), _last_id(session, run_id))
    numbers = _numbers(session, names)
    if after:
        found = _later(session, run_id, numbers, after)
    else:
        found = {
            name: kept.values(session, run_id, number, place).between(first, last)
            for name, number in numbers.items()
        }
    reached = kept.reached(session, run_id, place)
    curves = [_curve(name, found.get(name, NOTHING), points, reached) for name in names]
    return Curves(curves, place.last_id, place.segment)


def last_values(session: Session, run_id: int) -> list[LastValue]:
    """The newest number of each metric of the run, in order of the names."""
    rows = session.execute(
        select(MetricName.name, Metric.update, Metric.value)
        .join(Metric, Metric.id == _newest(session, run_id))
        .order_by(MetricName.name)
    )
    return [LastValue(*row) for row in rows]


def recent_values(
    session: Session, run_id: int, name: str, count: int, *, oldest: bool = False
) -> list[tuple[int, float | None]]:
    """The last (or with ``oldest`` the first) ``count`` updates that have the metric, with its
    values, in order of the updates."""
    order = Metric.update.asc() if oldest else Metric.update.desc()
    rows = session.execute(
        select(Metric.update, Metric.value)
        .join(MetricName, MetricName.id == Metric.name_id)
        .where(visible_in(session, run_id, Metric), MetricName.name == name)
        .order_by(order)
        .limit(count)
    )
    return sorted((update, value) for update, value in rows)


def newest_rows(session: Session, run_id: int, name: str, count: int) -> list[MetricRow]:
    """The last ``count`` numbers of a metric, the newest first."""
    values = recent_values(session, run_id, name, count)
    axes = reached(session, run_id, {update for update, _ in values})
    return [
        MetricRow(name, update, *axes.get(update, (None, None, None)), value)
        for update, value in reversed(values)
    ]


def metric_rows(
    store: Store, run_id: int, names: Sequence[str], *, size: int = 2000
) -> Iterator[list[MetricRow]]:
    """All numbers of some metrics, name by name, ``size`` rows at a time. Between two pieces no
    session is open: however slowly they are taken, nothing waits for it."""
    with store.read() as session:
        numbers = sorted(_numbers(session, names).items())
    for name, number in numbers:
        with store.read() as session:
            place = Place(_newest_segment(session, run_id), _last_id(session, run_id))
            rows = AllSeries().values(session, run_id, number, place)
        for start in range(0, len(rows.updates), size):
            updates = rows.updates[start : start + size].tolist()
            values = _nullable(rows.values[start : start + size])
            with store.read() as session:
                axes = reached(session, run_id, set(updates))
            yield [
                MetricRow(name, update, *axes.get(update, (None, None, None)), value)
                for update, value in zip(updates, values, strict=True)
            ]


Axes = dict[int, tuple[int | None, int | None, float | None]]


def reached(session: Session, run_id: int, updates: set[int]) -> Axes:
    """Steps, tokens and time by the end of each of ``updates``; those of the evaluation where that
    is all there is."""
    if not updates:
        return {}
    asked = select(Update.update, Update.kind, Update.steps, Update.tokens, Update.at).where(
        visible_in(session, run_id, Update)
    )
    found: Axes = {}
    numbers = sorted(updates)
    span = numbers[-1] - numbers[0] + 1
    if span <= 2 * len(numbers):
        parts = [asked.where(Update.update.between(numbers[0], numbers[-1]))]
    else:
        parts = [
            asked.where(Update.update.in_(numbers[start : start + _ASKED_AT_ONCE]))
            for start in range(0, len(numbers), _ASKED_AT_ONCE)
        ]
    for part in parts:
        rows = session.execute(part.where(Update.kind.in_(("train", "evaluation"))))
        for update, kind, steps, tokens, at in rows:
            if kind == "train" or update not in found:
                found[update] = (steps, tokens, at)
    return found


def _newest(session: Session, run_id: int) -> ScalarSelect[int]:
    """The id of the run's newest row of each name, beside `MetricName`."""
    return (
        select(Metric.id)
        .where(visible_in(session, run_id, Metric), Metric.name_id == MetricName.id)
        .order_by(Metric.update.desc(), Metric.segment_id.desc())
        .limit(1)
        .correlate(MetricName)
        .scalar_subquery()
    )


def _last_id(session: Session, run_id: int) -> int:
    """The run's greatest id. Not the table's: where several runs are written at once, rows of this
    one may be kept after another's that have greater ids. A run has one writer."""
    newest = select(_newest(session, run_id).label("id")).select_from(MetricName).subquery()
    return session.scalar(select(func.max(newest.c.id))) or 0


def _newest_segment(session: Session, run_id: int) -> int:
    return session.scalar(select(func.max(Segment.id)).where(Segment.run_id == run_id)) or 0


def _numbers(session: Session, names: Sequence[str]) -> dict[str, int]:
    found = select(MetricName.name, MetricName.id).where(MetricName.name.in_(names))
    return dict(session.execute(found).all())


def _later(session: Session, run_id: int, numbers: dict[str, int], after: int) -> dict[str, Series]:
    """What was appended since ``after``, found by id: a sum is in no index, so that the new rows
    are read and not the whole of each metric."""
    asked = select(Metric.name_id, Metric.update, Metric.value).where(
        Metric.id > after,
        Metric.run_id + 0 == run_id,
        visible(Metric),
    )
    names = {number: name for name, number in numbers.items()}
    found: dict[str, dict[int, float | None]] = {}
    for number, update, value in session.execute(asked):
        if number in names:
            found.setdefault(names[number], {})[update] = value
    return {name: series_of(rows) for name, rows in found.items()}


def _curve(name: str, whole: Series, points: int, reached: Series) -> Curve:
    rows, means = thinned(whole, points)
    axes = reached.at(rows.updates)
    return Curve(
        name=name,
        updates=rows.updates.tolist(),
        steps=_whole_numbers(axes[:, 0]),
        tokens=_whole_numbers(axes[:, 1]),
        times=_nullable(axes[:, 2]),
        values=_nullable(rows.values),
        means=_nullable(means),
        total=len(whole.updates),
        nonfinite=int((~np.isfinite(whole.values)).sum()),
        thinned=len(rows.updates) < len(whole.updates),
    )


def _whole_numbers(values: Floats) -> list[int | None]:
    return [None if value is None else int(value) for value in _nullable(values)]


def _nullable(values: Floats) -> list[float | None]:
    numbers: list[float | None] = values.tolist()
    for place in np.flatnonzero(~np.isfinite(values)).tolist():
        numbers[place] = None
    return numbers
