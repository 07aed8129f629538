from __future__ import annotations

import time

from told_runs import enter, the_run

from app.store.alive import HERE, identity, is_alive, process_lives


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


def test_this_process_lives():
    own = identity()
    assert own["host"] == HERE
    assert process_lives(own["pid"], own["process_started_at"])
    assert not process_lives(own["pid"], None), "when it was started is not known"
    assert not process_lives(None, None)
