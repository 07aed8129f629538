"""Runs that really train, and what the store has of them."""

from __future__ import annotations

import os
import subprocess
from contextlib import closing, suppress

import pytest
from small_runs import SMALL, Recorder, rewards, write_run
from sqlalchemy import select
from told_runs import enter, the_run

from app.store.database import Store
from app.store.models import Answer, Artifact, Metric, MetricName, Segment, Update
from app.store.models import Event as Journal
from app.store.monitor import StoreMonitor
from app.store.visible import visible_in
from app.watched import run_watched
from trainer.checkpoint.file import read
from trainer.errors import ConfigError
from trainer.monitor import CompositeMonitor, JsonlMonitor
from trainer.resume import checkpoint_folder
from trainer.run import run

MIXED = rewards((0.0, 1.0, 0.5, 0.25))


@pytest.fixture
def store(tmp_path):
    with closing(Store.open(str(tmp_path / "store.db"))) as opened:
        yield opened


def points(store, run_id):
    with store.read() as session:
        found = session.execute(
            select(Metric.update, Metric.value)
            .join(MetricName, MetricName.id == Metric.name_id)
            .where(visible_in(session, run_id, Metric), MetricName.name == "reward/mean")
            .order_by(Metric.update)
        )
        return found.all()


def test_a_run_and_its_continuation_are_one_run_without_a_doubled_point(
    store, tmp_path, random_llama
):
    model = random_llama(**SMALL)
    folder = tmp_path / "run"
    config = write_run(folder, model, MIXED, {"grpo.updates": 3})
    assert run_watched(config, store=str(tmp_path / "store.db")).exit_status == 0
    first = the_run(store, 1)
    assert (first.status, first.completed, first.source) == ("completed", 3, "terminal")
    assert points(store, 1) == [(1, 0.4375), (2, 0.4375), (3, 0.4375)]
    with store.read() as session:
        kinds = session.scalars(select(Artifact.kind).order_by(Artifact.id)).all()
        assert kinds == ["adapter", "config", "checkpoint"]
        assert len(session.scalars(select(Answer)).all()) == 12
    longer = write_run(folder, model, MIXED, {"grpo.updates": 5})
    run_watched(longer, checkpoint_folder(longer), store=str(tmp_path / "store.db"))
    run = the_run(store, 1)
    assert (run.status, run.completed, run.planned) == ("completed", 5, 5)
    assert [update for update, _ in points(store, 1)] == [1, 2, 3, 4, 5]
    with store.read() as session:
        assert session.scalars(select(Segment.resumed_from)).all() == [None, 3]
        updates = session.scalars(select(Update).where(visible_in(session, 1, Update))).all()
        assert [u.steps for u in updates] == [1, 2, 3, 4, 5]


def test_a_run_may_have_no_store(tmp_path, random_llama, monkeypatch):
    monkeypatch.setenv("RETROGRAD_STORE", str(tmp_path / "not.db"))
    config = write_run(tmp_path, random_llama(**SMALL), MIXED)
    assert run_watched(config, store="none").exit_status == 0
    assert not (tmp_path / "not.db").exists()


def test_what_is_refused_before_it_starts_has_not_been_a_run(store, tmp_path, random_llama):
    config = write_run(tmp_path / "run", random_llama(**SMALL), MIXED)
    (tmp_path / "run" / "prompts.jsonl").write_text("nonsense")
    with pytest.raises(ConfigError):
        run_watched(config, store=str(tmp_path / "store.db"))
    with store.read() as session:
        assert session.execute(select(Segment)).all() == []


def test_a_store_that_cannot_be_opened_ends_the_command_before_it_computes(
    retrograd, tmp_path, random_llama
):
    config = write_run(tmp_path, random_llama(**SMALL), MIXED)
    (tmp_path / "notes.txt").write_text("no database " * 100)
    done = retrograd("train", config.source, "--store", tmp_path / "notes.txt")
    assert done.returncode == 2
    assert "file is not a database" in done.stderr
    assert "--store none trains without a store" in done.stderr
    assert not config.output.path.exists()


def test_the_command_keeps_its_run_where_the_environment_says(
    retrograd, store, tmp_path, random_llama
):
    config = write_run(tmp_path / "run", random_llama(**SMALL), MIXED)
    where = os.environ | {"RETROGRAD_STORE": str(tmp_path / "store.db")}
    done = retrograd("train", config.source, env=where)
    assert done.returncode == 0, done.stderr
    run = the_run(store, 1)
    assert (run.status, run.completed) == ("completed", 1)
    assert run.provenance["command"].endswith(f"retrograd train {config.source}")
    assert len(run.provenance["base model"]) == 64


# -- a disk that is full for a while ---------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own with room for eight megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system of one's own may not be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


class Filling(Recorder):
    """Fills the disk after the second update, and makes room again after the fifth."""

    def __init__(self, place):
        super().__init__()
        self.filler = place / "filler"

    def metrics(self, update, status, values):
        super().metrics(update, status, values)
        if update == 2:
            with self.filler.open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(bytes(4096))
        elif update == 5:
            self.filler.unlink()


def test_a_disk_that_is_full_for_a_while_is_told_and_costs_no_update(
    small_disk, tmp_path, random_llama
):
    changes = {
        "grpo.updates": 8,
        "output.path": str(tmp_path / "adapter.gguf"),
        "checkpoint.every_steps": 1,
        "checkpoint.directory": str(small_disk / "saved"),
        "observe.directory": str(small_disk / "seen"),
    }
    config = write_run(tmp_path / "run", random_llama(**SMALL), MIXED, changes)
    said: list[str] = []
    filling = Filling(small_disk)
    with closing(Store.open(str(small_disk / "store.db"))) as store:
        kept = StoreMonitor(store, enter(store, tmp_path), said.append)
        records = JsonlMonitor(small_disk / "seen")
        outcome = run(config, CompositeMonitor([records, kept, filling]))
        assert outcome.status == "completed"
        row = the_run(store, kept.run_id)
        assert (row.status, row.completed, row.lost) == ("completed", 8, 0)
        with store.read() as session:
            codes = session.scalars(select(Journal.code)).all()
    assert len(said) == 2
    assert "cannot be written to" in said[0]
    assert said[1].endswith("can be written to again: nothing was lost.")
    for code in ("store_failing", "store_again", "monitor_failed", "monitor_again"):
        assert codes.count(code) == 1, code
    [(level, words)] = [
        (e.level, e.message) for e in filling.events if "could not be written" in e.message
    ]
    assert level == "error"
    assert f"could not be written to {small_disk / 'saved'}: No space left on device. Make" in words
    assert "until then the newest one is that of update" in words
    for path in (small_disk / "saved").glob("*.ckpt"):
        assert read(path)["update"]
    assert {p.name for p in (small_disk / "saved").iterdir()} >= {"update-000008.ckpt"}
