from __future__ import annotations

import csv
import io
import json
import math

import pytest
from told_runs import PARAMS, enter, group, info, outcome, tell, values, whole_run

from app.store.export import metrics_csv, metrics_jsonl, records_jsonl
from app.store.monitor import StoreMonitor
from trainer.monitor import CompositeMonitor, JsonlMonitor

CUT = {"observe": {"directory": None, "every": 2, "max_text_chars": 9}}


@pytest.fixture
def told(store, tmp_path):
    """A run told to the store and to observe.jsonl; the id and the file's records."""
    monitor = StoreMonitor(store, enter(store, tmp_path))
    records = JsonlMonitor(tmp_path / "records", every=2, max_text_chars=9)
    both = CompositeMonitor([records, monitor])
    both.run_started(info(tmp_path, params=PARAMS | CUT))
    both.evaluation(0, [group(0, [("held-out", 0.5)])], {"eval/mean_reward": 0.5})
    tell(both, 1)
    tell(both, 2, reward__mean=math.nan)
    both.evaluation(2, [group(0, [("held-out again", 1.0)])], {"eval/mean_reward": 1.0})
    both.run_finished(outcome(2))
    return monitor.run_id, lines(records.path.read_text().splitlines())


def lines(text):
    return [json.loads(line) for line in text]


def as_set(records):
    return {json.dumps(record, sort_keys=True) for record in records}


def without_time(records):
    return [{key: value for key, value in record.items() if key != "time"} for record in records]


def test_the_records_are_those_of_observe_jsonl(store, told):
    run_id, written = told
    exported = without_time(lines(records_jsonl(store, run_id)))
    expected = without_time(written)
    exported[0].pop("model"), expected[0].pop("model")  # the store knows the file's name alone
    assert [r for r in exported if r["type"] == "rollout"] == [
        r for r in expected if r["type"] == "rollout"
    ]
    # There prompts and answers take turns; here the prompts of an update come first.
    assert as_set(exported) == as_set(expected)


def test_the_metrics_alone(store, told):
    run_id, written = told
    exported = lines(metrics_jsonl(store, run_id))
    assert without_time(exported) == without_time(
        r for r in written if r["type"] in ("update", "evaluation")
    )
    assert [record["update"] for record in exported] == [0, 1, 2, 2]
    assert exported[2]["metrics"]["reward/mean"] is None
    assert exported[2]["nonfinite"] == ["reward/mean"]


def test_a_table_has_a_row_for_each_update_and_a_column_for_each_metric(store, told):
    table = list(csv.DictReader(io.StringIO("".join(metrics_csv(store, told[0])))))
    assert [(row["kind"], row["update"], row["reward/mean"]) for row in table] == [
        ("evaluation", "0", ""),
        ("train", "1", "0.01"),
        ("train", "2", ""),
        ("evaluation", "2", ""),
    ]
    assert [row["eval/mean_reward"] for row in table] == ["0.5", "", "", "1.0"]
    assert (table[1]["steps"], table[1]["tokens"]) == ("2", "24")
    assert set(values(1)) < set(table[0])


def test_what_was_superseded_is_left_out(store, tmp_path):
    run_id = whole_run(store, tmp_path, 6, end=False).run_id
    again = StoreMonitor(store, run_id)
    again.run_started(info(tmp_path, resumed_from_update=3))
    tell(again, 4)
    again.run_finished(outcome(4))
    records = lines(records_jsonl(store, run_id))
    assert [r["update"] for r in records if r["type"] == "update"] == [1, 2, 3, 4]
    assert len([r for r in records if r["type"] == "rollout"]) == 4 * 8
    assert len([r for r in records if r["type"] == "prompt"]) == 2


def test_a_long_run_comes_whole_though_in_pieces(store, tmp_path, monkeypatch):
    monkeypatch.setattr("app.store.export._UPDATES_AT_ONCE", 3)
    monkeypatch.setattr("app.store.export._GROUPS_AT_ONCE", 1)
    run_id = whole_run(store, tmp_path, 10).run_id
    records = lines(records_jsonl(store, run_id))
    assert [r["update"] for r in records if r["type"] == "update"] == list(range(1, 11))
    assert len([r for r in records if r["type"] == "rollout"]) == 80


def test_a_run_that_is_not_there_has_no_records(store):
    assert list(records_jsonl(store, 9)) == []
