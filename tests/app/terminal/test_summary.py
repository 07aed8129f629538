from __future__ import annotations

import dataclasses
from itertools import chain, repeat

import pytest

from app.terminal.history import RunHistory
from app.terminal.summary import headline, summarise, summary_rows
from trainer.health.findings import Finding
from trainer.monitor import Outcome


@pytest.fixture
def history(info) -> RunHistory:
    times = chain([0.0], [1.0] * 10, repeat(232.0))
    history = RunHistory(info, lambda: next(times))
    for update in range(1, 11):
        history.add(update, "trained", {"reward/mean": 0.2 if update <= 5 else 0.5})
    return history


def test_a_finished_run_says_what_was_gained_and_how_to_use_it(history, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/my adapter.gguf").write_bytes(bytes(3 << 20))
    outcome = Outcome("completed", 24, str(tmp_path / "runs/my adapter.gguf"), "")
    assert headline(history, outcome) == "Finished 24 of 24 updates in 3 min 52 s."
    assert summary_rows(history, outcome, tmp_path / "observe.jsonl") == [
        ("reward", "0.200 → 0.500 (+0.300), mean of the first 5 updates → of the last 5"),
        ("adapter", "runs/my adapter.gguf (3.0 MiB)"),
        ("use it", "llama-cli -m models/base.gguf --lora 'runs/my adapter.gguf'"),
        ("records", "observe.jsonl"),
    ]


def test_a_merged_model_is_used_alone(history, info, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    history.info = dataclasses.replace(info, params={"output": {"kind": "model"}})
    rows = dict(summary_rows(history, Outcome("completed", 24, "merged.gguf", ""), None))
    assert rows["model"] == "merged.gguf"
    assert rows["use it"] == "llama-cli -m merged.gguf"


def test_a_run_without_a_result_says_why(history):
    outcome = Outcome("stopped", 2, None, "no optimizer step was made")
    assert dict(summary_rows(history, outcome, None))["result"] == (
        "none was written: no optimizer step was made"
    )
    assert headline(history, outcome).startswith("Stopped after 2 of 24 updates")


def test_what_is_wrong_with_the_metrics_is_said_without_control_characters(history):
    finding = Finding(
        "completions/truncation_fraction", "watch", 0.7, "above 0.5", 3, "Cut\x1b[2J.", "Raise it."
    )
    outcome = Outcome("completed", 24, None, "", (finding,))
    assert summarise(history, outcome, None).health == [
        "completions/truncation_fraction is 0.7, above 0.5, since update 3. Cut␛[2J. Raise it."
    ]
    assert summarise(history, Outcome("completed", 24, None, ""), None).health == []
