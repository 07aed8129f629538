from __future__ import annotations

import numpy as np
import pytest
from sqlalchemy import event
from told_runs import enter, info, outcome, tell, whole_run

from app.store.monitor import StoreMonitor
from app.store.queries import series
from app.store.queries.metrics import curves_of
from app.store.queries.series import AllSeries, Series, series_of

NAMES = ["reward/mean", "reward/max"]


@pytest.fixture
def reading(store):
    """How many statements have read rows of metrics by name."""
    seen: list[str] = []

    def note(_connection, _cursor, statement, *_rest):
        if "coalesce(metrics.value" in statement:
            seen.append(statement)

    event.listen(store.engine, "before_cursor_execute", note)
    yield seen
    event.remove(store.engine, "before_cursor_execute", note)


def columns(store, run_id, kept):
    with store.read() as session:
        found = curves_of(session, run_id, NAMES, kept=kept).curves
    return [(curve.updates, curve.values, curve.steps, curve.times) for curve in found]


def begun(store, folder, updates):
    """A run that goes on."""
    monitor = StoreMonitor(store, enter(store, folder))
    monitor.run_started(info(folder))
    for update in range(1, updates + 1):
        tell(monitor, update)
    monitor.settle()
    return monitor


def test_what_is_kept_is_not_read_again(store, tmp_path, reading):
    run_id, kept = whole_run(store, tmp_path, 6).run_id, AllSeries()
    first = columns(store, run_id, kept)
    assert len(reading) == len(NAMES)
    assert columns(store, run_id, kept) == first
    assert len(reading) == len(NAMES)


def test_what_is_kept_follows_a_run_that_goes_on(store, tmp_path):
    monitor, kept = begun(store, tmp_path, 4), AllSeries()
    columns(store, monitor.run_id, kept)
    tell(monitor, 5)
    tell(monitor, 6)
    monitor.settle()
    found = columns(store, monitor.run_id, kept)
    assert found[0][0] == [1, 2, 3, 4, 5, 6]
    assert found == columns(store, monitor.run_id, None)
    monitor.run_finished(outcome(6))


def test_what_a_later_segment_superseded_is_not_kept(store, tmp_path):
    run_id, kept = whole_run(store, tmp_path, 6, end=False).run_id, AllSeries()
    columns(store, run_id, kept)
    again = StoreMonitor(store, run_id)
    again.run_started(info(tmp_path, resumed_from_update=3))
    tell(again, 4, reward__mean=0.875)
    again.settle()
    updates, values, _, _ = columns(store, run_id, kept)[0]
    assert updates == [1, 2, 3, 4]
    assert values[-1] == 0.875
    again.run_finished(outcome(4))


def test_who_sees_less_is_not_shown_what_came_later(store, tmp_path):
    """A page that began to read before the row came would be given it twice: now, and after its
    cursor."""
    monitor, kept = begun(store, tmp_path, 4), AllSeries()
    with store.read() as early:
        before = curves_of(early, monitor.run_id, NAMES)
        tell(monitor, 5)
        monitor.settle()
        assert columns(store, monitor.run_id, kept)[0][0] == [1, 2, 3, 4, 5]
        again = curves_of(early, monitor.run_id, NAMES, kept=kept)
    if again.last_id == before.last_id:  # a database may let a transaction see what came meanwhile
        assert again.curves[0].updates == [1, 2, 3, 4]
    monitor.run_finished(outcome(5))


def test_what_was_asked_for_longest_ago_goes_first(store, tmp_path, reading, monkeypatch):
    run_id, kept = whole_run(store, tmp_path, 6).run_id, AllSeries()
    columns(store, run_id, kept)
    assert kept.size > 0
    monkeypatch.setattr(series, "KEPT_BYTES", kept.size)
    columns(store, run_id, kept)
    one_too_many = whole_run(store, tmp_path, 6).run_id
    with store.read() as session:
        curves_of(session, one_too_many, NAMES[:1], kept=kept)
    assert kept.size <= series.KEPT_BYTES
    del reading[:]
    with store.read() as session:
        curves_of(session, one_too_many, NAMES[:1], kept=kept)
    assert reading == []
    columns(store, run_id, kept)
    assert len(reading) > 0


def test_a_part_of_a_series():
    whole = series_of({3: 0.3, 1: 0.1, 2: None, 7: 0.7})
    assert whole.updates.tolist() == [1, 2, 3, 7]
    assert whole.between(2, 6).updates.tolist() == [2, 3]
    assert whole.between(None, 1).updates.tolist() == [1]
    assert whole.between(8, None).updates.tolist() == []


def test_rows_that_are_not_there_are_not_numbers():
    whole = Series(np.array([2, 4]), np.array([[1.0, 10.0], [2.0, 20.0]]))
    found = whole.at(np.array([1, 2, 3, 4, 5]))
    assert np.isnan(found[[0, 2, 4]]).all()
    assert found[[1, 3]].tolist() == [[1.0, 10.0], [2.0, 20.0]]
    nothing = Series(np.empty(0, np.int64), np.empty((0, 2)))
    assert np.isnan(nothing.at(np.array([1]))).all()
