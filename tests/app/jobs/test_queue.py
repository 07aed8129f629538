"""The queue on each database, with servers that ask at the same time."""

from __future__ import annotations

import os
import threading
import time

import pytest
from sqlalchemy import select
from told_runs import enter, groups, info, tell, the_run, wait_until

from app.jobs import queue
from app.store.alive import HERE, own_start
from app.store.models import Answer, Run, Segment, Update
from app.store.monitor import StoreMonitor
from app.store.registry import mark_interrupted, new_run


@pytest.fixture
def drafts(store):
    with store.write() as session:
        runs = []
        for number in range(6):
            run = new_run(float(number))
            run.name = run.algorithm = run.model = run.folder = run.config_path = ""
            run.config_text, run.source, run.status = "", "browser", "draft"
            session.add(run)
            runs.append(run)
        session.flush()
        return [run.id for run in runs]


def test_servers_that_ask_at_once_get_different_runs_and_no_more_than_allowed(store, drafts):
    for run_id in drafts:
        queue.enqueue(store, run_id)
    claims = []
    ready = threading.Barrier(6)

    def ask():
        ready.wait()
        claims.append(queue.claim(store, 4))

    servers = [threading.Thread(target=ask) for _ in range(6)]
    for server in servers:
        server.start()
    for server in servers:
        server.join()
    got = sorted(claim.run_id for claim in claims if claim is not None)
    assert got == drafts[:4]
    assert queue.claim(store, 4) is None
    assert queue.end(store, drafts[0], "completed", "")
    assert queue.claim(store, 4).run_id == drafts[4]


def test_a_run_goes_to_one_process_alone(store, drafts):
    queue.enqueue(store, drafts[0])
    assert not queue.begins(store, drafts[0], 1, 0.0), "nobody has claimed it"
    queue.claim(store, 1)
    queue.started(store, drafts[0], 100, 0.0)
    assert not queue.begins(store, drafts[0], 200, 0.0)
    assert queue.begins(store, drafts[0], 100, 0.0)
    assert not queue.end(store, drafts[0], "failed", "late news", pid=200)
    with store.read() as session:
        assert session.get(Run, drafts[0]).status == "starting"


@pytest.mark.parametrize("way", ["the supervisor of its server", "whoever looks later"])
def test_what_a_killed_run_left_open_gets_its_end(store, tmp_path, way):
    monitor = StoreMonitor(store, enter(store, tmp_path))
    monitor.run_started(info(tmp_path))
    tell(monitor, 1)
    monitor.progress("generate", 3, 8)
    monitor.trajectories(2, groups(2))
    monitor.settle()
    wait_until(lambda: the_run(store, monitor.run_id).stage_done == 3)
    monitor.abandon()
    if way == "whoever looks later":
        with store.write() as session:
            run = session.get_one(Run, monitor.run_id)
            run.process_started_at, run.heartbeat_at = 1.0, 1000.0
        assert mark_interrupted(store) == [monitor.run_id]
    else:
        assert queue.end(store, monitor.run_id, "interrupted", "It was killed.")
    run = the_run(store, monitor.run_id)
    assert (run.status, run.stage, run.stage_done, run.stage_total) == ("interrupted", "", 0, 0)
    with store.read() as session:
        ends = session.execute(select(Update.update, Update.status).order_by(Update.id)).all()
        assert list(map(tuple, ends)) == [(1, "trained"), (2, "skipped")]
        fates = select(Answer.update, Answer.trained).distinct().order_by(Answer.update)
        assert list(map(tuple, session.execute(fates))) == [(1, True), (2, False)]
        assert session.scalars(select(Segment.status)).all() == ["interrupted"]


def test_one_whose_process_still_puts_things_away_is_not_claimed(store, drafts):
    """Also where the clock was set since it began: its heart has beaten a moment ago."""
    with store.write() as session:
        run = session.get_one(Run, drafts[0])
        run.status, run.heartbeat_at, run.pid = "stopped", time.time(), os.getpid()
        run.process_started_at = own_start() - 3600
    queue.enqueue(store, drafts[0])
    assert queue.claim(store, 1) is None


def test_only_what_can_be_done_is_done(store, drafts):
    run_id = drafts[0]
    queue.enqueue(store, run_id)
    with pytest.raises(queue.QueueError, match="cannot be queued, because it is queued"):
        queue.enqueue(store, run_id)
    with pytest.raises(queue.QueueError, match="asked to checkpoint, because it is queued"):
        queue.ask(store, run_id, "checkpoint")
    with pytest.raises(queue.QueueError, match="no run 999"):
        queue.take(store, 999)


def test_a_run_of_a_terminal_takes_a_place_and_gives_it_back(store, drafts, tmp_path):
    queue.enqueue(store, drafts[0])
    terminal = enter(store, tmp_path, status="running", host=HERE, pid=os.getpid())
    elsewhere = enter(store, tmp_path, status="running", host="another machine", pid=1)
    assert queue.claim(store, 1) is None
    with store.read() as session:
        assert queue.ahead(session, drafts[0]) == 1
    with store.write() as session:
        session.get_one(Run, terminal).status = "completed"
    claim = queue.claim(store, 1)
    assert claim is not None
    assert claim.run_id == drafts[0]
    assert the_run(store, elsewhere).status == "running"
