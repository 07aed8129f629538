"""Whether a run can go on from the checkpoints that lie in its folder, and whose they are."""

from __future__ import annotations

import os
from contextlib import closing

import pytest
from told_runs import enter, the_run

from app.jobs.queue import QueueError
from app.jobs.resumption import refuse_what_cannot_go_on, resumption
from app.store.alive import HERE
from app.store.database import Store
from trainer.checkpoint.file import write

MINE, OTHERS = "1" * 32, "2" * 32


@pytest.fixture
def store(tmp_path):
    with closing(Store.open(str(tmp_path / "store.db"))) as opened:
        yield opened


@pytest.fixture
def run(store, tmp_path):
    """The row of a run that was interrupted after its fourth update."""
    output = str(tmp_path / "adapter.gguf")
    (tmp_path / "adapter.checkpoints").mkdir()
    known = {"status": "interrupted", "output": output, "completed": 4, "host": HERE}
    return the_run(store, enter(store, tmp_path, uuid=MINE, **known))


def save(folder, update, run):
    path = folder / "adapter.checkpoints" / f"update-{update:06d}.ckpt"
    write(path, {"update": update}, run)
    os.utime(path, (update, update))


def test_it_goes_on_from_its_own_and_not_from_the_newest(run, tmp_path):
    save(tmp_path, 3, MINE)
    save(tmp_path, 9, OTHERS)
    assert resumption(run).words == "Goes on from the checkpoint of update 3."


def test_without_one_of_its_own_it_cannot(run, store, tmp_path):
    save(tmp_path, 9, OTHERS)
    found = resumption(run)
    assert not found.possible
    assert "and the ones in its folder are of another run" in found.words
    with pytest.raises(QueueError, match="of another run"):
        refuse_what_cannot_go_on(store, run.id)


def test_a_run_of_before_goes_on_from_one_without_a_name(run, tmp_path):
    run.uuid = ""
    save(tmp_path, 3, "")
    save(tmp_path, 9, OTHERS)
    assert resumption(run).words == "Goes on from the checkpoint of update 3."
