"""The queue on each database, with servers that ask at the same time."""

from __future__ import annotations

import threading

import pytest

from app.jobs import queue
from app.store.models import Run
from app.store.registry import new_run


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


def test_only_what_can_be_done_is_done(store, drafts):
    run_id = drafts[0]
    queue.enqueue(store, run_id)
    with pytest.raises(queue.QueueError, match="cannot be queued, because it is queued"):
        queue.enqueue(store, run_id)
    with pytest.raises(queue.QueueError, match="asked to checkpoint, because it is queued"):
        queue.ask(store, run_id, "checkpoint")
    with pytest.raises(queue.QueueError, match="no run 999"):
        queue.take(store, 999)
