from __future__ import annotations

import math

import pytest
from event_files import curve, read, texts
from told_runs import enter, group, info, outcome, tell

from app.store.export_tensorboard import write_event_file
from app.store.models import Run
from app.store.monitor import StoreMonitor
from trainer.monitor import CompositeMonitor
from trainer.monitor.eventfile import PATTERN
from trainer.monitor.tensorboard import TensorBoardMonitor


@pytest.fixture
def run_id(store, tmp_path):
    """A run that was killed at update 4 and went on after update 2."""
    run_id = enter(store, tmp_path, name="sums/one")
    first = StoreMonitor(store, run_id)
    first.run_started(info(tmp_path, name="sums/one"))
    first.evaluation(0, [group(0, [("held out", 0.5)])], {"eval/mean_reward": 0.5})
    for update in range(1, 5):
        tell(first, update)
    first.settle()
    first.abandon()
    second = StoreMonitor(store, run_id)
    second.run_started(info(tmp_path, name="sums/one", resumed_from_update=2))
    tell(second, 3, reward__mean=0.5)
    tell(second, 4, reward__mean=math.inf)
    second.run_finished(outcome(4))
    return run_id


def test_a_stored_run_is_read_by_tensorboard_as_if_it_had_never_stopped(store, run_id, tmp_path):
    folder = write_event_file(store, run_id, tmp_path / "board")
    assert folder == tmp_path / f"board/run-{run_id}-sums_one"
    *points, (last, strange) = curve(folder, "reward/mean")
    assert points == [(1, pytest.approx(0.01)), (2, pytest.approx(0.02)), (3, 0.5)]
    assert last == 4
    assert math.isnan(strange), "the store keeps that it was not finite"
    assert curve(folder, "eval/mean_reward") == [(0, 0.5)]
    assert "held out" in texts(folder, "eval/answers")[0]
    assert "answer 1 0 3" in texts(folder, "answers")[1]
    assert '"grpo_epochs": 2' in texts(folder, "config")[0]
    times = [point.wall_time for point in read(folder).Scalars("reward/mean")]
    assert times == sorted(times)
    assert "_hparams_/session_end_info" in read(folder).PluginTagToContent("hparams")


def test_another_export_takes_the_place_of_the_first(store, run_id, tmp_path):
    first = write_event_file(store, run_id, tmp_path)
    assert write_event_file(store, run_id, tmp_path) == first
    assert len(list(first.glob(PATTERN))) == 1
    assert len(curve(first, "reward/mean")) == 4


def test_a_run_of_another_store_has_a_folder_of_its_own(store, run_id, tmp_path):
    first = write_event_file(store, run_id, tmp_path)
    before = list(first.glob(PATTERN))
    with store.write() as session:
        session.get_one(Run, run_id).uuid = "another"
    second = write_event_file(store, run_id, tmp_path)
    assert second == tmp_path / f"{first.name}-2"
    assert list(first.glob(PATTERN)) == before
    assert write_event_file(store, run_id, tmp_path) == second


def test_an_export_that_fails_leaves_the_one_before(store, run_id, tmp_path, monkeypatch):
    folder = write_event_file(store, run_id, tmp_path)
    before = list(folder.glob(PATTERN))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("app.store.export_tensorboard.scalars", full)
    with pytest.raises(OSError, match="No space"):
        write_event_file(store, run_id, tmp_path)
    assert list(folder.glob(PATTERN)) == before


def test_an_export_has_the_samples_that_the_run_itself_would_have_had(store, tmp_path):
    run_id = enter(store, tmp_path, name="long")
    stored, board = StoreMonitor(store, run_id), TensorBoardMonitor(tmp_path / "live")
    every = CompositeMonitor([stored, board])
    every.run_started(info(tmp_path, name="long", updates=20))
    for update in range(1, 12):
        tell(every, update)
    every.run_finished(outcome(11, status="stopped"))
    folder = write_event_file(store, run_id, tmp_path / "board")
    live = texts(board.folder, "answers")
    assert list(live) == [1, 3, 5, 7, 9, 11]
    assert texts(folder, "answers") == live
