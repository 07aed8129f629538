from __future__ import annotations

import dataclasses
import io
import os
import pty
import re
import termios
import threading

import pytest

from app.terminal import TerminalMonitor
from app.terminal.summary import Leads
from trainer.health.findings import Finding
from trainer.monitor import Event, Outcome

HOSTILE = "\x1b[2J\x1b]0;owned\x07 [bold]5[/bold]\nnext \u202eline"
DONE = Outcome("completed", 24, "runs/adapter.gguf", "")
FINDING = Finding(
    metric="critic/explained_variance",
    state="watch",
    value=-0.25,
    bound="below 0",
    since=20,
    what="The critic misleads the advantages.",
    change="Raise ppo.critic.value_epochs.",
)


def leads():
    return Leads(again="retrograd train run.toml --resume")


def play(monitor, info, group, values):
    """A run of two updates that ends early."""
    with monitor:
        monitor.run_started(info)
        monitor.progress("prepare", 1, 3)
        monitor.event(Event("warning", "packing", "fell back to 4\x1b[31m answers"))
        for update in (1, 2):
            for stage in ("generate", "reward", "score", "train"):
                monitor.progress(stage, 1, 2)
            monitor.trajectories(update, [group(("5", 1.0), (HOSTILE, 0.0))])
            monitor.metrics(update, "trained", values | {"reward/mean": 0.4 * update})
        monitor.run_finished(DONE)


def test_in_a_log_file_each_update_is_one_line_that_stands_alone(info, group, values):
    stream = io.StringIO()
    play(TerminalMonitor(stream), info, group, values)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "run addition: GRPO, 24 updates"
    assert "update 1/24: reward 0.400, dead groups 25%, grad norm 0.83" in stream.getvalue()
    assert (
        "update 2/24: reward 0.800 (+0.400), dead groups 25%, grad norm 0.83, clipped 6.2%, "
        "KL 0.0021, length 11.2, cut off 0%, 9.8s = generate 5.2s + reward 0.10s + score 1.3s + "
        "train 3.2s + swap 0.08s"
    ) in lines
    assert "  best answer, reward 1.000: 5" in lines
    assert "  worst answer, reward 0.000: ␛[2J␛]0;owned␇ [bold]5[/bold]↵next \\u202eline" in lines
    assert "warning: fell back to 4␛[31m answers" in lines
    assert "  reward: 0.400 → 0.800 (+0.400), first → last" in lines
    assert "\x1b" not in stream.getvalue()


def play_evaluated(monitor, info, group, values):
    """Evaluations around an update, checkpoints, one of which failed, and a stop."""
    held_out = [group(("5", 1.0), question=f"{n} + 1?") for n in range(16)]
    with monitor:
        monitor.run_started(info)
        monitor.progress("prepare", 3, 3)
        monitor.progress("evaluate", 3, 16)
        monitor.evaluation(0, held_out, {"eval/mean_reward": 0.625})
        monitor.metrics(1, "trained", values)
        monitor.event(Event("info", "checkpoint", "saved a", 1, {"path": "out/a.ckpt"}))
        monitor.evaluation(1, held_out, {"eval/mean_reward": 0.9375})
        monitor.event(Event("info", "checkpoint", "saved b", 1, {"path": "out/b.ckpt"}))
        monitor.event(Event("error", "checkpoint", "the disk is full", 1))
        monitor.run_finished(Outcome("stopped", 1, None, "stopped after 1 update"))


EVALUATED = [
    "held-out reward before the first update: 0.625, 16 prompts",
    "held-out reward after update 1: 0.938 (+0.312), 16 prompts",
    "error: the disk is full",
]


def test_evaluations_and_checkpoints_in_a_log_file(info, group, values):
    stream = io.StringIO()
    play_evaluated(TerminalMonitor(stream, leads=leads), info, group, values)
    lines = stream.getvalue().splitlines()
    assert [line for line in lines if line.startswith(("held-out", "error"))] == EVALUATED
    assert "saved" not in stream.getvalue(), "one a minute would hide all else"
    assert lines[-2:] == ["  checkpoint: out/b.ckpt", "  go on: retrograd train run.toml --resume"]


@pytest.mark.parametrize("columns", [80, 120])
def test_evaluations_and_checkpoints_on_a_terminal(monkeypatch, info, group, values, columns):
    monkeypatch.delenv("NO_COLOR", raising=False)
    output = on_a_terminal(
        monkeypatch,
        columns,
        lambda s: play_evaluated(TerminalMonitor(s, leads=leads), info, group, values),
    )
    lines = [line.strip() for line in re.split("[\r\n]+", SEQUENCES.sub("", output))]
    assert all(len(line) <= columns for line in lines)
    assert [line for line in lines if line.startswith(("held-out reward", "error"))] == EVALUATED
    assert lines[-3:-1] == [
        "checkpoint  out/b.ckpt",
        "go on       retrograd train run.toml --resume",
    ]


def test_one_prompt_is_one_prompt(info, group, values):
    stream = io.StringIO()
    with TerminalMonitor(stream) as monitor:
        monitor.run_started(info)
        monitor.evaluation(2, [group(("5", 1.0))], {"eval/mean_reward": 1.0})
    assert "held-out reward after update 2: 1.000, 1 prompt\n" in stream.getvalue()


def play_ppo(monitor, info, group, values):
    """A run of one update, in which each prompt has one answer, that leaves a finding."""
    with monitor:
        monitor.run_started(info)
        answers = {"2 + 2?": ("4", 1.0), "3 + 3?": ("It is 6.", 0.5), "1 + 5?": ("7", 0.2)}
        groups = [group(answer, question=question) for question, answer in answers.items()]
        monitor.trajectories(1, groups)
        monitor.metrics(1, "trained", values | {"critic/explained_variance": -0.25})
        monitor.run_finished(dataclasses.replace(DONE, findings=[FINDING]))


def test_a_ppo_run_in_a_log_file(ppo_info, group, values):
    stream = io.StringIO()
    play_ppo(TerminalMonitor(stream), ppo_info, group, values)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "run addition: PPO, 24 updates"
    assert any(line.startswith("  critic: share of the returns' variance") for line in lines)
    assert "dead groups" not in stream.getvalue()
    first = next(i for i, line in enumerate(lines) if line.startswith("update 1/24"))
    assert "reward 0.412, critic -0.25, grad norm 0.83, clipped 6.2%" in lines[first]
    assert lines[first + 1 : first + 5] == [
        "  prompt: 2 + 2?",
        "  best answer, reward 1.000: 4",
        "  prompt: 1 + 5?",
        "  worst answer, reward 0.200: 7",
    ]
    assert lines[-1] == (
        "  health: critic/explained_variance is -0.25, below 0, since update 20. The critic "
        "misleads the advantages. Raise ppo.critic.value_epochs."
    )


@pytest.mark.parametrize("columns", [80, 120])
def test_a_ppo_run_on_a_terminal(monkeypatch, ppo_info, group, values, columns):
    monkeypatch.delenv("NO_COLOR", raising=False)
    output = on_a_terminal(
        monkeypatch, columns, lambda s: play_ppo(TerminalMonitor(s), ppo_info, group, values)
    )
    lines = [line.rstrip() for line in re.split("[\r\n]+", SEQUENCES.sub("", output))]
    assert all(len(line) <= columns for line in lines)
    assert re.search(r"1/24 +0\.412 +-0\.25 +0\.83 +6\.2% +0\.0021 +11\.2 +0%", "\n".join(lines))
    assert [line for line in lines if line[:4].strip() in tuple("╭│╰")] == [
        "   ╭ prompt            2 + 2?",
        "   │ best       1.000  4",
        "   │ prompt            1 + 5?",
        "   ╰ worst      0.200  7",
    ]
    health = " ".join(" ".join(lines[lines.index(" Health") + 1 :]).split())
    assert health == "• " + FINDING.message, "folded, and nothing is lost"


def test_a_newcomer_is_told_why_no_loss_is_shown(info, group, values):
    stream = io.StringIO()
    play(TerminalMonitor(stream), info, group, values)
    assert "loss: not shown: it is about zero by construction" in stream.getvalue()
    assert re.search("KL: .* from the one that wrote the answers, .* per token", stream.getvalue())


def on_a_terminal(monkeypatch, columns, drive, term="xterm-256color"):
    """What ``drive(stream)`` writes to a real terminal of that width."""
    monkeypatch.setenv("TERM", term)
    for name in ("COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    outer, inner = pty.openpty()
    termios.tcsetwinsize(inner, (40, columns))
    attributes = termios.tcgetattr(inner)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(inner, termios.TCSANOW, attributes)
    with os.fdopen(inner, "w", encoding="utf-8") as stream:
        chunks: list[bytes] = []

        def collect():
            try:
                while chunk := os.read(outer, 65536):
                    chunks.append(chunk)
            except OSError:  # the other end was closed
                return

        reader = threading.Thread(target=collect)
        reader.start()
        drive(stream)
    reader.join()
    os.close(outer)
    return b"".join(chunks).decode("utf-8")


SEQUENCES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.mark.parametrize("columns", [80, 120])
def test_on_a_terminal_rows_fit_bars_move_and_answers_are_harmless(
    monkeypatch, info, group, values, columns
):
    monkeypatch.delenv("NO_COLOR", raising=False)
    output = on_a_terminal(
        monkeypatch, columns, lambda stream: play(TerminalMonitor(stream), info, group, values)
    )
    visible = SEQUENCES.sub("", output)
    assert "\x1b" not in visible, "only the styles and cursor moves of the monitor itself"
    assert "\x1b[2J" not in output
    assert "\x1b[31m answers" not in output
    assert "━" in visible
    assert "␛[2J␛]0;owned␇ [bold]5[/bold]↵next" in visible
    for line in visible.replace("\r", "\n").split("\n"):
        assert len(line) <= columns
    assert re.search(r"2/24 +0\.800 +\+0\.400 +25% +0\.83 +6\.2% +0\.0021", visible)
    assert output.rstrip().endswith("llama-cli -m models/base.gguf --lora runs/adapter.gguf")
    assert "\x1b[?25h" in output, "the cursor is shown again"


@pytest.mark.parametrize(
    ("algorithm", "stage", "shown"),
    [
        ("grpo", "prepare", "1/4 steps"),
        ("grpo", "generate", "1/4 answers"),
        ("grpo", "reward", "1/4 answers"),
        ("grpo", "score", "1/4 groups"),
        ("grpo", "train", "1/4 steps"),
        ("grpo", "evaluate", "1/4 answers"),
        ("ppo", "score", "1/4 answers"),
        ("ppo", "train", "1/4 steps"),
    ],
)
def test_the_bar_of_a_stage_says_what_it_counts(monkeypatch, info, algorithm, stage, shown):
    monkeypatch.delenv("NO_COLOR", raising=False)

    def start(stream):
        with TerminalMonitor(stream) as monitor:
            monitor.run_started(dataclasses.replace(info, algorithm=algorithm))
            monitor.progress(stage, 1, 4)

    assert shown in SEQUENCES.sub("", on_a_terminal(monkeypatch, 80, start))


def test_while_a_run_is_merged_no_bar_of_its_updates_is_shown(monkeypatch, info):
    monkeypatch.delenv("NO_COLOR", raising=False)

    def start(stream):
        with TerminalMonitor(stream) as monitor:
            monitor.run_started(info)
            monitor.progress("merge", 0, 0)

    shown = SEQUENCES.sub("", on_a_terminal(monkeypatch, 80, start))
    *_, last = shown.replace("\r", "\n").rstrip().splitlines()
    assert last.startswith(" merging")
    assert "left" not in last


def test_a_run_that_is_thrown_over_gives_the_terminal_back(monkeypatch, info):
    monkeypatch.delenv("NO_COLOR", raising=False)

    def start_and_leave(stream):
        with TerminalMonitor(stream) as monitor:
            monitor.run_started(info)

    output = on_a_terminal(monkeypatch, 80, start_and_leave)
    assert output.index("\x1b[?25l") < output.index("\x1b[?25h")


@pytest.mark.parametrize(("no_color", "term"), [("1", "xterm"), (None, "dumb")])
def test_a_terminal_that_wants_it_plain_gets_plain_lines(
    monkeypatch, info, group, values, no_color, term
):
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", no_color)
    output = on_a_terminal(
        monkeypatch, 80, lambda stream: play(TerminalMonitor(stream), info, group, values), term
    )
    assert "\x1b" not in output
    assert "update 2/24: reward 0.800 (+0.400)" in output
