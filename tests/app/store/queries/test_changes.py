from __future__ import annotations

import pytest
from told_runs import enter, info, outcome, tell, whole_run

from app.store.models import Run
from app.store.monitor import StoreMonitor
from app.store.queries.changes import look, mark_of
from trainer.monitor import Event


@pytest.fixture
def watch(store):
    """Looks again; (run, kind) of what is new. ``watch.seen`` is the last state."""

    def again(*followed):
        with store.read() as session:
            again.seen, news = look(session, again.seen, followed)
        return {(one.run_id, one.kind) for one in news}

    again.seen = None
    again()
    return again


def test_nothing_is_new_where_nothing_was_written(store, tmp_path, watch):
    whole_run(store, tmp_path, 1)
    watch()
    assert watch() == set()


def test_each_kind_of_row_is_news_of_its_run(store, tmp_path, watch):
    run_id = enter(store, tmp_path)
    assert watch() == {(run_id, "run"), (None, "runs")}
    monitor = StoreMonitor(store, run_id)
    monitor.run_started(info(tmp_path))
    monitor.event(Event("info", "note", "hello"))
    monitor.settle()
    assert watch() == {(run_id, "run"), (run_id, "events"), (None, "runs")}
    tell(monitor, 1)
    monitor.settle()
    assert watch() == {
        (run_id, "run"), (run_id, "metrics"), (run_id, "trajectories"), (None, "runs")
    }  # fmt: skip
    monitor.run_finished(outcome(1))
    assert {(run_id, "run"), (None, "runs")} <= watch()


def test_a_run_that_has_ended_is_looked_at_while_somebody_follows_it(store, tmp_path, watch):
    run_id = enter(store, tmp_path, status="completed")
    assert watch(run_id) == {(run_id, "run"), (None, "runs")}
    with store.write() as session:
        session.get_one(Run, run_id).pulse += 1
    assert watch(run_id) == {(run_id, "run"), (None, "runs")}


def test_a_deleted_run_is_news(store, tmp_path, watch):
    run_id = enter(store, tmp_path, status="completed")
    watch(run_id)
    with store.write() as session:
        session.delete(session.get_one(Run, run_id))
    assert watch(run_id) == {(run_id, "run"), (None, "runs")}


def test_news_tell_how_far_the_rows_go_and_name_the_state(store, tmp_path, watch):
    monitor = whole_run(store, tmp_path, 1)
    with store.read() as session:
        _, news = look(session, None, [])
        assert news == [], "the first look has nothing to compare with"
        before = watch.seen
        _, news = look(session, before, [monitor.run_id])
        marks = {one.mark for one in news if one.run_id is not None}
        assert marks == {mark_of(session, monitor.run_id)}
        metrics = next(one for one in news if one.kind == "metrics")
        assert metrics.last_id == 7, "one update of seven metrics"


def test_a_mark_is_another_one_after_each_change(store, tmp_path):
    marks = []

    def note():
        with store.read() as session:
            marks.append((mark_of(session, run_id), mark_of(session, None)))

    run_id = enter(store, tmp_path)
    note()
    with store.write() as session:
        session.get_one(Run, run_id).pulse += 1
    note()
    enter(store, tmp_path)
    note()
    assert marks[0] != marks[1]
    assert marks[1][0] == marks[2][0]
    assert len({of_list for _, of_list in marks}) == 3
    with store.read() as session:
        assert mark_of(session, 10**6) == ""
