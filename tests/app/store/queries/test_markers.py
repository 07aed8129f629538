from __future__ import annotations

from told_runs import enter, info, outcome, tell

from app.store.monitor import StoreMonitor
from app.store.queries.markers import began, markers_of
from trainer.monitor import Event


def test_evaluations_checkpoints_and_resumes_have_their_updates(store, tmp_path):
    run_id = enter(store, tmp_path)
    first = StoreMonitor(store, run_id)
    first.run_started(info(tmp_path))
    first.evaluation(0, [], {"eval/mean_reward": 0.1})
    for update in (1, 2, 3):
        tell(first, update)
        first.event(Event("info", "checkpoint", "saved", update))
    first.event(Event("error", "checkpoint", "the disk is full", 3))
    first.settle()
    first.abandon()
    again = StoreMonitor(store, run_id)
    again.run_started(info(tmp_path, resumed_from_update=2))
    tell(again, 3)
    again.evaluation(3, [], {"eval/mean_reward": 0.3})
    again.run_finished(outcome(3))
    with store.read() as session:
        markers = markers_of(session, run_id)
        assert [(marker.kind, marker.update) for marker in markers] == [
            ("evaluation", 0),
            ("checkpoint", 1),
            ("checkpoint", 2),
            ("resume", 2),
            ("evaluation", 3),
        ], "the checkpoint of the first update 3 was superseded"
        assert [marker.steps for marker in markers] == [0, 2, 4, 4, 6]
        assert began(session, run_id) == markers[1].time


def test_a_run_that_has_not_begun_has_none(store, tmp_path):
    run_id = enter(store, tmp_path)
    with store.read() as session:
        assert markers_of(session, run_id) == []
        assert began(session, run_id) is None
