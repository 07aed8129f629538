from __future__ import annotations

import dataclasses
from itertools import chain, repeat

import pytest

from app.terminal.history import RunHistory
from app.terminal.summary import Leads, headline, summarise, summary_rows
from trainer.health.findings import Finding
from trainer.monitor import Outcome

AGAIN = "retrograd train runs/run.toml --resume --seed 3"


@pytest.fixture
def history(info) -> RunHistory:
    times = chain([0.0], [1.0] * 10, repeat(232.0))
    history = RunHistory(info, lambda: next(times))
    for update in range(1, 11):
        history.add(update, "trained", {"reward/mean": 0.2 if update <= 5 else 0.5})
    return history


@pytest.mark.parametrize(
    ("algorithm", "key"), [("grpo", "grpo.updates"), ("sft", "training.epochs")]
)
def test_a_run_that_has_nothing_left_to_do_says_how_to_go_on(info, algorithm, key):
    over = dataclasses.replace(info, algorithm=algorithm, resumed_from_update=24)
    outcome = Outcome("completed", 24, "adapter.gguf", "")
    assert headline(RunHistory(over, lambda: 0.0), outcome) == (
        f"All 24 updates were made before. To train on, raise {key} and resume again."
    )


def test_a_finished_run_says_what_was_gained_and_how_to_use_it(history, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/my adapter.gguf").write_bytes(bytes(3 << 20))
    outcome = Outcome("completed", 24, str(tmp_path / "runs/my adapter.gguf"), "")
    assert headline(history, outcome) == "Finished 24 of 24 updates in 3 min 52 s."
    assert summary_rows(history, outcome, Leads(tmp_path / "observe.jsonl")) == [
        ("reward", "0.200 → 0.500 (+0.300), mean of the first 5 updates → of the last 5"),
        ("adapter", "runs/my adapter.gguf (3.0 MiB)"),
        ("use it", "llama-cli -m models/base.gguf --lora 'runs/my adapter.gguf'"),
        ("records", "observe.jsonl"),
    ]


def held_out(history, *rewards):
    for place, reward in enumerate(rewards):
        history.evaluated(4 * place, 16, {"eval/mean_reward": reward})


def test_held_out_rewards_are_summed_up_with_the_best_of_them(history):
    held_out(history, 0.625, 0.9375, 0.875)
    outcome = Outcome("completed", 24, None, "")
    rows = dict(summary_rows(history, outcome, Leads()))
    assert rows["held-out"] == ("0.625 → 0.875 (+0.250), first → last; best 0.938 after update 4")


@pytest.mark.parametrize(
    ("rewards", "shown"),
    [
        ((0.5,), "0.500"),
        ((0.5, 0.25), "0.500 → 0.250 (-0.250), first → last; best 0.500 before the first update"),
    ],
)
def test_held_out_rewards_that_never_rose(history, rewards, shown):
    held_out(history, *rewards)
    assert dict(summary_rows(history, Outcome("completed", 24, None, ""), Leads()))["held-out"] == (
        shown
    )


@pytest.mark.parametrize("status", ["stopped", "failed"])
def test_a_run_that_did_not_end_says_how_to_go_on(history, tmp_path, monkeypatch, status):
    monkeypatch.chdir(tmp_path)
    history.checkpoint = str(tmp_path / "adapter.checkpoints/update-000009.ckpt")
    rows = summary_rows(history, Outcome(status, 9, None, "why"), Leads(again=AGAIN))
    assert rows[-2:] == [
        ("checkpoint", "adapter.checkpoints/update-000009.ckpt"),
        ("go on", AGAIN),
    ]


def test_a_run_that_ended_or_saved_nothing_has_nothing_to_go_on_from(history):
    assert "go on" not in dict(summary_rows(history, Outcome("stopped", 0, None, ""), Leads()))
    history.checkpoint = "update-000024.ckpt"
    assert "go on" not in dict(summary_rows(history, Outcome("completed", 24, None, ""), Leads()))


def test_a_merged_model_is_used_alone(history, info, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    history.info = dataclasses.replace(info, params={"output": {"kind": "model"}})
    rows = dict(summary_rows(history, Outcome("completed", 24, "merged.gguf", ""), Leads()))
    assert rows["model"] == "merged.gguf"
    assert rows["use it"] == "llama-cli -m merged.gguf"


def test_a_run_without_a_result_says_why(history):
    outcome = Outcome("stopped", 2, None, "no optimizer step was made")
    assert dict(summary_rows(history, outcome, Leads()))["result"] == (
        "none was written: no optimizer step was made"
    )
    assert headline(history, outcome).startswith("Stopped after 2 of 24 updates")


def test_what_is_wrong_with_the_metrics_is_said_without_control_characters(history):
    finding = Finding(
        "completions/truncation_fraction", "watch", 0.7, "above 0.5", 3, "Cut\x1b[2J.", "Raise it."
    )
    outcome = Outcome("completed", 24, None, "", (finding,))
    assert summarise(history, outcome, Leads()).health == [
        "completions/truncation_fraction is 0.7, above 0.5, since update 3. Cut␛[2J. Raise it."
    ]
    assert summarise(history, Outcome("completed", 24, None, ""), Leads()).health == []


def test_a_run_of_sft_is_summed_up_by_its_loss_of_which_the_lowest_is_best(sft_info):
    history = RunHistory(sft_info, lambda: 0.0)
    for update in range(1, 11):
        history.add(update, "trained", {"sft/loss": 2.0 if update <= 5 else 0.5})
    for place, loss in enumerate((1.0, 0.25, 0.5)):
        history.evaluated(4 * place, 0, {"eval/loss": loss, "eval/texts": 3.0})
    rows = dict(summary_rows(history, Outcome("completed", 24, None, ""), Leads()))
    assert rows["loss"].startswith("2.000 → 0.500 (-1.500), mean of the first 5 updates")
    assert rows["held-out loss"] == (
        "1.000 → 0.500 (-0.500), first → last; best 0.250 after update 4"
    )
    assert "reward" not in rows


def test_a_merged_model_stands_with_the_adapter_that_was_kept(history, info, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    history.info = dataclasses.replace(info, params={"output": {"kind": "model"}})
    (tmp_path / "my model.gguf").write_bytes(bytes(2 << 20))
    kept = str(tmp_path / "my model.adapter.gguf")
    outcome = Outcome("completed", 24, str(tmp_path / "my model.gguf"), "", adapter=kept)
    assert summary_rows(history, outcome, Leads())[1:] == [
        ("model", "my model.gguf (2.0 MiB)"),
        ("adapter", "my model.adapter.gguf"),
        ("use it", "llama-cli -m 'my model.gguf'"),
    ]


def test_where_merging_failed_the_adapter_is_what_can_be_used(history, info):
    history.info = dataclasses.replace(info, params={"output": {"kind": "model"}})
    outcome = Outcome("failed", 24, None, "no room", adapter="runs/m.adapter.gguf")
    assert summary_rows(history, outcome, Leads())[1:] == [
        ("model", "none was written; the adapter is whole"),
        ("adapter", "runs/m.adapter.gguf"),
        ("use it", "llama-cli -m models/base.gguf --lora runs/m.adapter.gguf"),
    ]
