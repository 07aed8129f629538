from __future__ import annotations

import pytest
from sqlalchemy import event, select, text
from told_runs import enter, groups, info, outcome, the_run, whole_run

from app.jobs.queue import QueueError, enqueue
from app.store.deletion import delete_run, finish_deletions
from app.store.errors import StoreError
from app.store.models import Base, Run
from app.store.monitor import StoreMonitor
from app.store.queries.runs import count_by_status, list_runs


def counts(store):
    with store.read() as session:
        return {
            table.name: len(session.execute(select(table)).all())
            for table in Base.metadata.sorted_tables
        }


def test_the_rows_of_a_run_go_and_those_of_others_stay(store, tmp_path):
    other = whole_run(store, tmp_path, 3).run_id
    before = counts(store)
    run_id = whole_run(store, tmp_path, 5).run_id
    again = StoreMonitor(store, run_id)
    again.run_started(info(tmp_path, resumed_from_update=2))
    again.run_finished(outcome(2))
    delete_run(store, run_id)
    assert counts(store) == before
    assert the_run(store, other).completed == 3


def test_the_disk_gets_back_what_a_run_took(file_store, tmp_path):
    monitor = StoreMonitor(file_store, enter(file_store, tmp_path))
    monitor.run_started(info(tmp_path))
    for update in range(1, 30):
        monitor.trajectories(update, groups(update, text="some words " * 2000))
    monitor.run_finished(outcome(30))

    def size():
        with file_store.read() as session:
            return session.scalar(text("PRAGMA page_count")) * 4096

    assert size() > 5 << 20
    delete_run(file_store, monitor.run_id)
    assert size() < 2 << 20


def test_files_of_the_terminal_stay_and_the_folder_of_the_browser_goes(store, tmp_path):
    for source in ("terminal", "browser"):
        folder = tmp_path / source
        folder.mkdir()
        run_id = enter(store, folder, source=source, status="completed")
        delete_run(store, run_id)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["terminal"]


def test_a_folder_that_is_gone_already_is_no_hindrance(store, tmp_path):
    run_id = enter(store, tmp_path, source="browser", status="failed")
    with store.write() as session:
        session.execute(text("UPDATE runs SET folder = '/nowhere/at/all'"))
    delete_run(store, run_id)
    assert counts(store)["runs"] == 0


def test_a_run_that_is_at_work_is_not_deleted(store, tmp_path):
    monitor = StoreMonitor(store, enter(store, tmp_path))
    monitor.run_started(info(tmp_path))
    with pytest.raises(StoreError, match="is at work"):
        delete_run(store, monitor.run_id)
    monitor.run_finished(outcome(0))
    delete_run(store, monitor.run_id)
    with pytest.raises(StoreError, match="no run"):
        delete_run(store, monitor.run_id)


def test_a_run_that_waits_in_the_queue_is_not_deleted(store, tmp_path):
    run_id = enter(store, tmp_path, status="queued", source="browser")
    with pytest.raises(StoreError, match="is queued"):
        delete_run(store, run_id)
    assert (tmp_path / "run.toml").exists()
    assert the_run(store, run_id).status == "queued"


def test_a_run_that_is_being_deleted_is_nobodys_any_more(store, tmp_path):
    """Here the deletion is cut short, so that others have the time to try."""
    run_id = whole_run(store, tmp_path, 2).run_id
    with store.write() as session:
        session.get_one(Run, run_id).status = "interrupted"

    def fail(_connection, _cursor, statement, *_):
        if statement.startswith("DELETE FROM metrics"):
            raise ZeroDivisionError

    event.listen(store.engine, "before_cursor_execute", fail)
    with pytest.raises(ZeroDivisionError):
        delete_run(store, run_id)
    event.remove(store.engine, "before_cursor_execute", fail)
    with pytest.raises(QueueError, match="because it is deleting"):
        enqueue(store, run_id)
    with store.read() as session:
        assert list_runs(session).total == 0
        assert count_by_status(session) == {}
    finish_deletions(store)
    kept = {"identity", "metric_names"}
    assert {name for name, count in counts(store).items() if count} == kept


def test_the_number_of_a_deleted_run_is_not_given_again(store, tmp_path):
    run_id = enter(store, tmp_path, status="completed")
    delete_run(store, run_id)
    assert enter(store, tmp_path) > run_id
