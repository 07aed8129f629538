from __future__ import annotations

from contextlib import closing

from app.store.database import VARIABLE, Store
from app.store.marks import MARK, environment, mark_of, marked_as


def test_what_is_started_does_not_learn_the_servers_secrets(monkeypatch):
    monkeypatch.setenv("RETROGRAD_TOKEN", "a-secret")
    monkeypatch.setenv(VARIABLE, "postgresql://me:word@localhost/runs")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    inherited = environment()
    assert not {"RETROGRAD_TOKEN", VARIABLE} & inherited.keys()
    assert inherited["OMP_NUM_THREADS"] == "1"


def test_inside_all_that_is_started_belongs_to_the_run(tmp_path, monkeypatch):
    monkeypatch.delenv(MARK, raising=False)
    with closing(Store.open(str(tmp_path / "store.db"))) as store:
        with marked_as(store, 7):
            assert environment()[MARK] == mark_of(store, 7)
        assert MARK not in environment()
