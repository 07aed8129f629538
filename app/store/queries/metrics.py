"""A run's numbers over its updates, as curves: thinned to what a screen can show, and followed by
a cursor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ScalarSelect, Select, func, select
from sqlalchemy.orm import Session

from app.store.database import Store
from app.store.models import Metric, MetricName, Segment, Update
from app.store.visible import visible, visible_in

LEAST_POINTS = 16
_ASKED_AT_ONCE = 500
_ROWS_OF_A_BUCKET = 4
"""The lowest, the highest and the last value, and one that is not finite."""

_Bare = tuple[int, float | None]
"""Update and value."""
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


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


@dataclass(frozen=True, slots=True)
class _Rows:
    updates: Integers
    values: Floats
    """NaN where there is no finite number."""


def curves_of(
    session: Session,
    run_id: int,
    names: Sequence[str],
    *,
    first: int | None = None,
    last: int | None = None,
    points: int = 600,
    after: int | None = None,
) -> Curves:
    """The curves of ``names`` over the updates ``first`` to ``last`` (None: from the start, to the
    end), of at most ``points`` rows each; or, with the cursor ``after``, all rows that came later.
    Names that the run has no numbers of have empty curves."""
    last_id = _last_id(session, run_id)
    segment = session.scalar(select(func.max(Segment.id)).where(Segment.run_id == run_id)) or 0
    numbers = _numbers(session, names)
    if not after:
        found = {
            name: _read(session, run_id, number, first, last) for name, number in numbers.items()
        }
    else:
        found = _later(session, run_id, numbers, after)
    nothing = _Rows(np.empty(0, np.int64), np.empty(0, np.float64))
    thinned = [(name, *_thin(found.get(name, nothing), points)) for name in names]
    axes = reached(session, run_id, {int(u) for _, rows, *_ in thinned for u in rows.updates})
    curves = [
        _curve(name, rows, means, found.get(name, nothing), axes) for name, rows, means in thinned
    ]
    return Curves(curves, last_id, segment)


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
            rows = _read(session, run_id, number, None, None)
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


def _numbers(session: Session, names: Sequence[str]) -> dict[str, int]:
    found = select(MetricName.name, MetricName.id).where(MetricName.name.in_(names))
    return dict(session.execute(found).all())


def _read(session: Session, run_id: int, number: int, first: int | None, last: int | None) -> _Rows:
    asked = select(Metric.update, Metric.value).where(
        visible_in(session, run_id, Metric), Metric.name_id == number
    )
    if first is not None:
        asked = asked.where(Metric.update >= first)
    if last is not None:
        asked = asked.where(Metric.update <= last)
    return _rows(_bare(session, asked))


def _bare(session: Session, asked: Select[int, float | None]) -> list[_Bare]:
    """The rows as the driver has them: a curve may have many thousands, and dressing them takes
    longer than reading."""
    cursor = session.connection().execute(asked).cursor
    return [] if cursor is None else list(cursor.fetchall())


def _later(session: Session, run_id: int, numbers: dict[str, int], after: int) -> dict[str, _Rows]:
    """What was appended since ``after``, found by id: a sum is in no index, so that the new rows
    are read and not the whole of each metric."""
    asked = select(Metric.name_id, Metric.update, Metric.value).where(
        Metric.id > after,
        Metric.run_id + 0 == run_id,
        visible(Metric),
    )
    names = {number: name for name, number in numbers.items()}
    found: dict[str, list[_Bare]] = {}
    for number, update, value in session.execute(asked):
        if number in names:
            found.setdefault(names[number], []).append((update, value))
    return {name: _rows(rows) for name, rows in found.items()}


def _rows(rows: Sequence[_Bare]) -> _Rows:
    """In order of the updates. There is one row for each: a metric is of training or of evaluation,
    and what a later segment superseded is not asked for."""
    if not rows:
        return _Rows(np.empty(0, np.int64), np.empty(0, np.float64))
    updates, values = zip(*rows, strict=True)
    ordered, numbers = np.array(updates, np.int64), np.array(values, np.float64)
    if (np.diff(ordered) < 0).any():
        order = np.argsort(ordered, kind="stable")
        ordered, numbers = ordered[order], numbers[order]
    return _Rows(ordered, numbers)


def _thin(rows: _Rows, points: int) -> tuple[_Rows, Floats]:
    """At most about ``points`` of ``rows``, with the means of the buckets that they stand for."""
    count = len(rows.updates)
    if count <= max(points, LEAST_POINTS):
        return rows, rows.values
    buckets = max(points, LEAST_POINTS) // _ROWS_OF_A_BUCKET
    low, high = int(rows.updates[0]), int(rows.updates[-1])
    bucket = (rows.updates - low) * buckets // (high - low + 1)
    starts = np.flatnonzero(np.concatenate(([True], bucket[1:] != bucket[:-1])))
    ends = np.append(starts[1:], count)
    finite = np.isfinite(rows.values)
    sums = np.add.reduceat(np.where(finite, rows.values, 0.0), starts)
    counts = np.add.reduceat(finite, starts, dtype=np.int64)
    means = np.divide(sums, counts, out=np.full(len(starts), np.nan), where=counts > 0)
    kept = np.zeros(count, dtype=bool)
    kept[0] = True
    kept[ends - 1] = True
    for extreme in (np.where(finite, rows.values, np.inf), np.where(finite, -rows.values, np.inf)):
        kept[_first_least(extreme, starts, ends)] = True
    kept[_first_least(finite.astype(np.float64), starts, ends)] = True
    places = np.flatnonzero(kept)
    at_the_ends = np.full(count, np.nan)
    at_the_ends[ends - 1] = means
    return _Rows(rows.updates[places], rows.values[places]), at_the_ends[places]


def _first_least(values: Floats, starts: Integers, ends: Integers) -> Integers:
    """The place of each bucket's least value, the first one of several."""
    least = np.repeat(np.minimum.reduceat(values, starts), ends - starts)
    places = np.where(values == least, np.arange(len(values)), len(values))
    found: Integers = np.minimum.reduceat(places, starts)
    return found


def _curve(name: str, rows: _Rows, means: Floats, whole: _Rows, axes: Axes) -> Curve:
    updates = rows.updates.tolist()
    rows_of = [axes.get(update, (None, None, None)) for update in updates]
    return Curve(
        name=name,
        updates=updates,
        steps=[of[0] for of in rows_of],
        tokens=[of[1] for of in rows_of],
        times=[of[2] for of in rows_of],
        values=_nullable(rows.values),
        means=_nullable(means),
        total=len(whole.updates),
        nonfinite=int((~np.isfinite(whole.values)).sum()),
        thinned=len(rows.updates) < len(whole.updates),
    )


def _nullable(values: Floats) -> list[float | None]:
    return [
        value if finite else None
        for value, finite in zip(values.tolist(), np.isfinite(values).tolist(), strict=True)
    ]
