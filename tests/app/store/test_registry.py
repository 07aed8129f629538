from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest
from small_runs import SMALL, write_run
from sqlalchemy import select
from told_runs import enter, groups, info, tell, the_run

from app.store.models import Answer, Run, Segment, Update
from app.store.monitor import StoreMonitor
from app.store.registry import find_model, is_alive, mark_interrupted, register


@pytest.fixture
def other():
    """A process that does nothing, with what is stored of it."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    started = psutil.Process(process.pid).create_time()
    yield process, {"pid": process.pid, "process_started_at": started, "host": os.uname().nodename}
    process.kill()
    process.wait()


@pytest.fixture
def config(tmp_path, random_llama):
    return write_run(tmp_path, random_llama(**SMALL), "def score(b, i, r): return 1.0\n")


def test_a_run_of_the_terminal_is_entered_with_its_configuration(store, config):
    run = the_run(store, register(store, config))
    assert (run.source, run.status, run.algorithm) == ("terminal", "starting", "grpo")
    assert run.config_path == str(config.source)
    assert run.config_text == config.source.read_text()
    assert run.output == str(config.output.path)
    assert run.pid == os.getpid()
    assert is_alive(run)


def test_one_that_begins_again_is_a_run_of_its_own(store, config):
    assert register(store, config) != register(store, config)


def test_one_that_goes_on_is_the_newest_with_the_same_file_and_output(
    store, config, tmp_path, random_llama
):
    first, second = register(store, config), register(store, config)
    elsewhere = config.output.model_copy(update={"path": tmp_path / "other.gguf"})
    third = register(store, config.model_copy(update={"output": elsewhere}))
    with store.write() as session:
        for run in session.scalars(select(Run)):
            run.status, run.message, run.completed = "stopped", "stopped after 3 updates", 3
    assert register(store, config, resumed=True) == second
    run = the_run(store, second)
    assert (run.status, run.completed) == ("starting", 3)
    assert the_run(store, first).status == the_run(store, third).status == "stopped"


def test_one_whose_process_is_at_work_is_left_alone(store, config):
    first = register(store, config)
    assert register(store, config, resumed=True) != first


def test_a_process_is_known_by_more_than_its_number(store, tmp_path, other):
    process, known = other
    run = the_run(store, enter(store, tmp_path, **known))
    assert is_alive(run)
    run.process_started_at -= 100
    assert not is_alive(run), "another process with that number"
    run.heartbeat_at = time.time()
    assert is_alive(run), "a clock that was set"
    process.kill()
    time.sleep(0.2)
    assert not is_alive(run), "a process that nobody has waited for is dead all the same"


def test_of_another_machine_only_the_heartbeat_is_known(store, tmp_path):
    run = the_run(store, enter(store, tmp_path, host="elsewhere", pid=1))
    assert not is_alive(run)
    run.heartbeat_at = time.time() - 10
    assert is_alive(run)


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
    assert "can be resumed" in the_run(store, living).message
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


def test_the_digest_of_a_model_is_found_once(store, tmp_path, monkeypatch):
    model = tmp_path / "base.gguf"
    model.write_bytes(b"GGUF" * 1000)
    found = find_model(store, model, {"python": "3"})
    enter(store, tmp_path, provenance=found)
    monkeypatch.setattr("app.store.registry.digest", lambda path: "read again")
    assert find_model(store, model, {"python": "3"}) == found
    model.write_bytes(b"GGUF" * 1001)
    assert find_model(store, model, {})["base model"] == "read again"
