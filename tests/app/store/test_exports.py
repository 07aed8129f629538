from __future__ import annotations

import json

from told_runs import enter, group, info, outcome, tell

from app.store.exports import EXPORTS, MEDIA
from app.store.monitor import StoreMonitor


def test_each_export_is_called_by_what_it_holds_and_how():
    assert list(EXPORTS) == [
        "metrics.csv",
        "metrics.jsonl",
        "answers.csv",
        "answers.jsonl",
        "events.csv",
        "events.jsonl",
        "records.jsonl",
    ]
    assert {export.form for export in EXPORTS.values()} == MEDIA.keys()


def test_answers_are_those_to_training_and_to_held_out_prompts(store, tmp_path):
    monitor = StoreMonitor(store, enter(store, tmp_path))
    monitor.run_started(info(tmp_path))
    tell(monitor, 1)
    monitor.evaluation(1, [group(0, [("held out", 1.0)])], {"eval/mean_reward": 1.0})
    monitor.run_finished(outcome(1))
    lines = list(EXPORTS["answers.jsonl"].lines(store, monitor.run_id))
    assert [json.loads(line)["kind"] for line in lines] == ["train"] * 8 + ["evaluation"]
    assert len(list(EXPORTS["answers.csv"].lines(store, monitor.run_id))) == 1 + 9
