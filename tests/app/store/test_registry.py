from __future__ import annotations

import os
import threading
import time

import pytest
from small_runs import SMALL, write_run
from sqlalchemy import event, select
from told_runs import enter, groups, info, tell, the_run, whole_run

from app.store.alive import is_alive
from app.store.models import Answer, Run, Segment, Update
from app.store.monitor import StoreMonitor
from app.store.registry import find_model, mark_interrupted, register


@pytest.fixture
def config(tmp_path, random_llama):
    return write_run(tmp_path, random_llama(**SMALL), "def score(b, i, r): return 1.0\n")


ONE, OTHER = "1" * 32, "2" * 32


@pytest.fixture
def begins(store, config, tmp_path):
    """Enters a run that begins or, with ``goes_on``, does so after its third update."""

    def begin(run_id, *, goes_on=False, as_configured=config):
        resumed = 3 if goes_on else None
        return register(
            store, as_configured, info(tmp_path, run_id=run_id, resumed_from_update=resumed)
        )

    return begin


def end_all(store, **named):
    with store.write() as session:
        for run in session.scalars(select(Run).order_by(Run.id)):
            run.status, run.message, run.completed = "stopped", "stopped after 3 updates", 3
            run.uuid = named.get(f"run{run.id}", "")


def test_a_run_of_the_terminal_is_entered_with_its_configuration(store, config, begins):
    run = the_run(store, begins(ONE))
    assert (run.source, run.status, run.algorithm) == ("terminal", "starting", "grpo")
    assert run.config_path == str(config.source)
    assert run.config_text == config.source.read_text()
    assert run.output == str(config.output.path)
    assert run.pid == os.getpid()
    assert is_alive(run)


def test_one_that_begins_again_is_a_run_of_its_own(begins):
    assert begins(ONE) != begins(OTHER)


def test_one_that_goes_on_is_the_one_of_its_checkpoint_and_not_the_newest(store, begins):
    first, second = begins(ONE), begins(OTHER)
    end_all(store, run1=ONE, run2=OTHER)
    assert begins(ONE, goes_on=True) == first
    run = the_run(store, first)
    assert (run.status, run.completed) == ("starting", 3)
    assert the_run(store, second).status == "stopped"


def test_one_that_goes_on_where_its_row_is_not_is_a_new_run(store, begins):
    first = begins(ONE)
    end_all(store, run1=ONE)
    assert begins(OTHER, goes_on=True) != first


def test_one_of_before_there_were_names_is_the_newest_with_the_same_file_and_output(
    store, config, begins, tmp_path
):
    begins(ONE), begins(ONE)
    elsewhere = config.output.model_copy(update={"path": tmp_path / "other.gguf"})
    begins(ONE, as_configured=config.model_copy(update={"output": elsewhere}))
    end_all(store)
    assert begins(OTHER, goes_on=True) == 2
    assert the_run(store, 1).status == the_run(store, 3).status == "stopped"


def test_one_whose_process_is_at_work_is_left_alone(store, begins):
    first = begins(ONE)
    with store.write() as session:
        session.get_one(Run, first).uuid = ONE
    assert begins(ONE, goes_on=True) != first


def test_a_run_whose_process_died_is_interrupted(store, tmp_path, other):
    process, known = other
    living = enter(store, tmp_path, status="running", **known)
    waiting = enter(store, tmp_path, status="starting")
    ended = enter(store, tmp_path, status="completed", **known)
    monitor = StoreMonitor(store, enter(store, tmp_path))
    monitor.run_started(info(tmp_path))
    tell(monitor, 1)
    monitor.trajectories(2, groups(2))
    monitor.settle()
    monitor.abandon()
    with store.write() as session:
        run = session.get_one(Run, monitor.run_id)
        run.pid, run.process_started_at = known["pid"], known["process_started_at"]
    assert mark_interrupted(store) == []
    process.kill()
    process.wait()
    before = the_run(store, living).pulse
    assert mark_interrupted(store) == [living, monitor.run_id]
    assert the_run(store, living).status == "interrupted"
    assert the_run(store, living).pulse == before + 1
    assert "ended without a word" in the_run(store, living).message
    assert the_run(store, waiting).status == "starting", "a server is about to start it"
    assert the_run(store, ended).status == "completed"
    with store.read() as session:
        assert session.scalars(select(Segment.status)).all() == ["interrupted"]
        last = session.scalars(select(Update).order_by(Update.id.desc())).first()
        assert (last.update, last.status, last.trained, last.tokens) == (2, "skipped", 0, 48)
        fates = select(Answer.update, Answer.trained, Answer.skip_reason).distinct()
        assert set(map(tuple, session.execute(fates))) == {
            (1, True, None),
            (2, False, "update_skipped"),
        }
    assert mark_interrupted(store) == []


def test_two_servers_that_notice_a_death_at_once_end_the_run_once(store, tmp_path):
    run_id = left_open(store, tmp_path)
    event.listen(store.engine, "before_cursor_execute", slow_to_insert_updates)
    noticed = []
    servers = [
        threading.Thread(target=lambda: noticed.extend(mark_interrupted(store))) for _ in range(2)
    ]
    for server in servers:
        server.start()
    for server in servers:
        server.join()
    assert noticed == [run_id]
    with store.read() as session:
        assert session.scalars(select(Update.update).order_by(Update.id)).all() == [1, 2]


def left_open(store, folder):
    """A run whose process is gone, and has left update 2 without an end."""
    monitor = whole_run(store, folder, 1, end=False)
    again = StoreMonitor(store, monitor.run_id)
    again.run_started(info(folder, resumed_from_update=1))
    again.trajectories(2, groups(2))
    again.settle()
    again.abandon()
    with store.write() as session:
        session.get_one(Run, monitor.run_id).process_started_at = 1.0
        session.get_one(Run, monitor.run_id).heartbeat_at = time.time() - 60
    return monitor.run_id


def slow_to_insert_updates(_connection, _cursor, statement, *_):
    if statement.startswith("INSERT INTO updates"):
        time.sleep(0.4)


def test_the_digest_of_a_model_is_found_once(store, tmp_path, monkeypatch):
    model = tmp_path / "base.gguf"
    model.write_bytes(b"GGUF" * 1000)
    found = find_model(store, model, {"python": "3"})
    enter(store, tmp_path, provenance=found)
    monkeypatch.setattr("app.store.registry.digest", lambda path: "read again")
    assert find_model(store, model, {"python": "3"}) == found
    model.write_bytes(b"GGUF" * 1001)
    assert find_model(store, model, {})["base model"] == "read again"
