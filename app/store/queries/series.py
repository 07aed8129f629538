"""All numbers of one metric of a run, as arrays, and those that were asked for lately kept: a run
of many updates is read once and then followed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Select, case, func, select
from sqlalchemy.orm import Session

from app.store.models import Metric, Update
from app.store.visible import visible_in

KEPT_BYTES = 64 * 2**20
"""A metric of 20,000 updates is 320 kB."""

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Place:
    """How far a run was told, as a transaction sees it: its newest segment, and the greatest id of
    its numbers. Where the segment is another, rows that counted before may not count any more."""

    segment: int
    last_id: int


@dataclass(frozen=True, slots=True)
class Series:
    """``updates``, in order and each once, and a row of ``columns`` for each."""

    updates: Integers
    columns: Floats

    @property
    def values(self) -> Floats:
        """The only column. NaN where there is no finite number."""
        return self.columns[:, 0]

    def between(self, first: int | None, last: int | None) -> Series:
        start = 0 if first is None else int(np.searchsorted(self.updates, first))
        end = None if last is None else int(np.searchsorted(self.updates, last, side="right"))
        return Series(self.updates[start:end], self.columns[start:end])

    def at(self, updates: Integers) -> Floats:
        """The rows of ``updates``; NaN where there is none."""
        found = np.full((len(updates), self.columns.shape[1]), np.nan)
        places = np.searchsorted(self.updates, updates)
        places[places == len(self.updates)] = 0
        if len(self.updates):
            known = self.updates[places] == updates
            found[known] = self.columns[places[known]]
        return found

    def followed_by(self, later: Series) -> Series:
        if not len(later.updates):
            return self
        return Series(
            np.concatenate((self.updates, later.updates)),
            np.concatenate((self.columns, later.columns)),
        )


NOTHING = Series(np.empty(0, np.int64), np.empty((0, 1)))


def series_of(rows: Mapping[int, float | None]) -> Series:
    """Values by update as a series."""
    updates = np.array(sorted(rows), np.int64)
    values = np.array([rows[int(update)] for update in updates], np.float64)
    return Series(updates, values[:, None])


Read = Callable[[Session, int, int | None], Series]
"""The rows of a run after an update; None for all."""


@dataclass(slots=True)
class AllSeries:
    """The series that were asked for lately. Threads may share it."""

    _kept: dict[tuple[int, int | str], tuple[Place, Series]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of all that is kept."""
        return sum(_bytes(series) for _, series in list(self._kept.values()))

    def values(self, session: Session, run_id: int, number: int, place: Place) -> Series:
        """The numbers of the metric whose name has the id ``number``. ``place`` is the run's, as
        ``session`` sees it."""

        def read(session: Session, run_id: int, after: int | None) -> Series:
            return _values(session, run_id, number, after)

        return self._of(session, run_id, number, place, read)

    def reached(self, session: Session, run_id: int, place: Place) -> Series:
        """Optimizer steps, tokens and Unix time by the end of each update; those of the evaluation
        where that is all there is."""
        return self._of(session, run_id, "reached", place, _reached)

    def _of(
        self, session: Session, run_id: int, what: int | str, place: Place, read: Read
    ) -> Series:
        before = self._kept.get((run_id, what))
        if before is None or before[0].segment != place.segment:
            series = read(session, run_id, None)
        elif before[0].last_id > place.last_id:  # kept by who saw more than this transaction does
            return read(session, run_id, None)
        elif before[0].last_id == place.last_id:
            series = before[1]
        else:
            known = before[1]
            last = int(known.updates[-1]) if len(known.updates) else None
            series = known.followed_by(read(session, run_id, last))
        self._keep((run_id, what), place, series)
        return series

    def _keep(self, key: tuple[int, int | str], place: Place, series: Series) -> None:
        self._kept.pop(key, None)
        for oldest in list(self._kept):
            if self.size + _bytes(series) <= KEPT_BYTES:
                break
            self._kept.pop(oldest, None)
        self._kept[key] = place, series


def _bytes(series: Series) -> int:
    return series.updates.nbytes + series.columns.nbytes


def _values(session: Session, run_id: int, number: int, after: int | None) -> Series:
    # There is one row for each update: a metric is of training or of evaluation, and what a later
    # segment superseded is not asked for.
    asked = select(Metric.update, func.coalesce(Metric.value, math.inf)).where(
        visible_in(session, run_id, Metric), Metric.name_id == number
    )
    if after is not None:
        asked = asked.where(Metric.update > after)
    rows = _array(session, asked, 2)
    values = rows[:, 1:]
    values[~np.isfinite(values)] = np.nan
    return Series(rows[:, 0].astype(np.int64), values)


def _reached(session: Session, run_id: int, after: int | None) -> Series:
    trained = case((Update.kind == "train", 1), else_=0)
    asked = select(Update.update, trained, Update.steps, Update.tokens, Update.at).where(
        visible_in(session, run_id, Update), Update.kind.in_(("train", "evaluation"))
    )
    if after is not None:
        asked = asked.where(Update.update > after)
    rows = _array(session, asked, 5)
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    last = np.append(np.diff(rows[:, 0]) != 0, np.ones(min(1, len(rows)), bool))
    return Series(rows[last, 0].astype(np.int64), rows[last, 2:])


def _array(session: Session, asked: Select[*tuple[float, ...]], width: int) -> Floats:
    """Rows in order of their first column. They go from the driver into the array one by one: a
    metric may have many thousands, and keeping each as an object takes longer than reading it."""
    cursor = session.connection().execute(asked).cursor
    rows: Sequence[Sequence[float]] = [] if cursor is None else cursor  # type: ignore[assignment]
    numbers = np.fromiter(chain.from_iterable(rows), np.float64).reshape(-1, width)
    if (np.diff(numbers[:, 0]) < 0).any():
        numbers = numbers[np.argsort(numbers[:, 0], kind="stable")]
    return numbers
