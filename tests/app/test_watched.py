"""Runs that really train, and what the store has of them."""

from __future__ import annotations

import os
from contextlib import closing

import pytest
from small_runs import SMALL, rewards, write_run
from sqlalchemy import select
from told_runs import the_run

from app.store.database import Store
from app.store.models import Answer, Artifact, Metric, MetricName, Segment, Update
from app.store.visible import visible_in
from app.watched import run_watched
from trainer.errors import ConfigError
from trainer.resume import checkpoint_folder

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
