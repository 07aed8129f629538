from __future__ import annotations

import pytest
from small_runs import Recorder

from trainer.checkpoint.file import read
from trainer.checkpoint.head import UNNAMED
from trainer.checkpoint.keeper import Keeper
from trainer.checkpoint.store import Store


class Watched(Recorder):
    """How often the identity was asked for stands beside what was told."""

    asked = 0


@pytest.fixture
def keeper(tmp_path):
    def make(**options):
        monitor = Watched()

        def identity():
            monitor.asked += 1
            return {"model": "abc"}

        folder = tmp_path / "saved"
        return Keeper(
            Store(folder, keep=3, every_steps=10, run=UNNAMED), identity, monitor, **options
        )

    return make


def state(update):
    return lambda: {"completed": update}


def names(keeper):
    return sorted(p.name for p in keeper.store.folder.glob("*"))


def test_an_update_is_saved_where_that_is_due_and_said_once(keeper):
    keeper = keeper()
    for update in (1, 2, 3):
        keeper.update_done(update, 6 * update, state(update))
    assert names(keeper) == ["update-000002.ckpt"]
    path = keeper.store.folder / "update-000002.ckpt"
    assert read(path) == {"identity": {"model": "abc"}, "update": 2, "loop": {"completed": 2}}
    [event] = keeper.monitor.events
    assert (event.level, event.code, event.update) == ("info", "checkpoint", 2)
    assert event.data == {"path": str(path)}


def test_the_end_saves_what_is_not_saved_yet_and_nothing_twice(keeper):
    keeper = keeper()
    keeper.update_done(1, 3, state(1))
    keeper.ended(1, 3, state(1))
    keeper.ended(1, 3, state(1))
    assert names(keeper) == ["update-000001.ckpt"]
    assert len(keeper.monitor.events) == 1


def test_a_run_that_made_no_update_leaves_nothing(keeper):
    keeper = keeper()
    keeper.ended(0, 0, state(0))
    assert names(keeper) == []
    assert keeper.monitor.asked == 0, "the model is not read for nothing"


def test_the_identity_is_asked_once(keeper):
    keeper = keeper()
    for update in (1, 2, 3):
        keeper.update_done(update, 10 * update, state(update))
    assert keeper.monitor.asked == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"with_steps": True, "with_best": False}, ["update-000001.ckpt", "update-000002.ckpt"]),
        ({"with_steps": False, "with_best": True}, ["best.ckpt"]),
        (
            {"with_steps": True, "with_best": True},
            ["best.ckpt", "update-000001.ckpt", "update-000002.ckpt"],
        ),
    ],
    ids=["steps", "best_eval", "steps_and_best_eval"],
)
def test_what_each_mode_keeps(keeper, options, expected):
    keeper = keeper(**options)
    keeper.better(1, 10, state(1))
    keeper.update_done(1, 10, state(1))
    keeper.ended(2, 12, state(2))
    assert names(keeper) == expected
    if options["with_best"]:
        assert read(keeper.store.folder / "best.ckpt")["update"] == 1


def test_a_save_of_the_best_one_does_not_stand_for_a_step(keeper):
    """Should the best one be overwritten, the run's last update must not go with it."""
    keeper = keeper(with_best=True)
    keeper.better(1, 1, state(1))
    keeper.ended(1, 1, state(1))
    assert names(keeper) == ["best.ckpt", "update-000001.ckpt"]


def test_a_folder_that_cannot_be_made_is_told_and_the_run_goes_on(keeper, tmp_path):
    (tmp_path / "saved").write_text("in the way")
    keeper = keeper()
    keeper.update_done(1, 10, state(1))
    [event] = keeper.monitor.events
    assert (event.level, event.code, event.update) == ("error", "checkpoint", 1)
    where = tmp_path / "saved"
    assert event.message == (
        f"the checkpoint of update 1 could not be written to {where}: File exists. Make room "
        "there, or mend what keeps it; until then there is none. Training goes on, and tries again "
        "after the next update"
    )
    keeper.update_done(2, 20, state(2))
    assert len(keeper.monitor.events) == 1, "once, however often it fails"

    where.unlink()
    keeper.ended(2, 20, state(2))
    assert names(keeper) == ["update-000002.ckpt"], "it is tried again at the end"


def test_a_model_that_went_away_is_told_and_the_run_goes_on(tmp_path):
    def gone():
        raise FileNotFoundError(2, "No such file or directory", "base.gguf")

    monitor = Recorder()
    keeper = Keeper(Store(tmp_path, keep=3, every_steps=1, run=UNNAMED), gone, monitor)
    keeper.ended(1, 1, state(1))
    [event] = monitor.events
    assert event.level == "error"
    assert "No such file or directory" in event.message
