from __future__ import annotations

import io
import os
import pty
import re
import termios
import threading

import pytest

from app.terminal import TerminalMonitor
from trainer.monitor import Event, Outcome

HOSTILE = "\x1b[2J\x1b]0;owned\x07 [bold]5[/bold]\nnext \u202eline"
DONE = Outcome("completed", 24, "runs/adapter.gguf", "")


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


def test_a_newcomer_is_told_why_no_loss_is_shown(info, group, values):
    stream = io.StringIO()
    play(TerminalMonitor(stream), info, group, values)
    assert "loss: not shown: it is about zero by construction" in stream.getvalue()
    assert re.search(
        "KL: .* from the one that wrote the answers: k3, .* per token", stream.getvalue()
    )


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
    ("stage", "shown"),
    [
        ("prepare", "1/4 steps"),
        ("generate", "1/4 answers"),
        ("reward", "1/4 answers"),
        ("score", "1/4 groups"),
        ("train", "1/4 steps"),
    ],
)
def test_the_bar_of_a_stage_says_what_it_counts(monkeypatch, info, stage, shown):
    monkeypatch.delenv("NO_COLOR", raising=False)

    def start(stream):
        with TerminalMonitor(stream) as monitor:
            monitor.run_started(info)
            monitor.progress(stage, 1, 4)

    assert shown in SEQUENCES.sub("", on_a_terminal(monkeypatch, 80, start))


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
