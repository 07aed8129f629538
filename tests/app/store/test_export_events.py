from __future__ import annotations

import csv
import json

import pytest
from told_runs import enter, info, outcome

from app.store.export_events import events_csv, events_jsonl
from app.store.monitor import StoreMonitor
from trainer.monitor import Event


@pytest.fixture
def run_id(store, tmp_path):
    monitor = StoreMonitor(store, enter(store, tmp_path))
    monitor.run_started(info(tmp_path))
    for number in range(1, 8):
        words = f"=WEBSERVICE({number}),\n{number}"
        monitor.event(Event("warning", "health", words, number, {"value": number / 2}))
    monitor.run_finished(outcome(7))
    return monitor.run_id


def test_the_journal_comes_oldest_first_some_lines_at_a_time(store, run_id, monkeypatch):
    monkeypatch.setattr("app.store.export_events._AT_ONCE", 3)
    lines = events_jsonl(store, run_id)
    first = json.loads(next(lines))
    assert store.engine.pool.checkedout() == 0, "a reader may be slow"
    told = [first, *map(json.loads, lines)]
    assert [record["update"] for record in told] == [*range(1, 8)]
    assert (first["level"], first["code"], first["data"]) == ("warning", "health", {"value": 0.5})
    assert first["message"] == "=WEBSERVICE(1),\n1", "as it was"
    assert first["time"].endswith("+00:00")


def test_a_table_of_it_holds_no_formula(store, run_id):
    rows = list(csv.DictReader("".join(events_csv(store, run_id)).splitlines(keepends=True)))
    assert [row["message"] for row in rows] == [f"'=WEBSERVICE({n}),\n{n}" for n in range(1, 8)]
    assert json.loads(rows[1]["data"]) == {"value": 1.0}


def test_a_run_without_events_has_a_head_alone(store, tmp_path):
    empty = enter(store, tmp_path)
    assert list(events_jsonl(store, empty)) == []
    assert list(events_csv(store, empty)) == ["time,level,code,update,message,data,id\n"]
