"""Lines where nothing can move, a bar where it can."""

from __future__ import annotations

import io

from app.terminal.progress import ProgressMonitor
from trainer.monitor import Event


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_elsewhere_only_what_happens_is_written_and_it_is_made_safe():
    stream = io.StringIO()
    with ProgressMonitor(stream, words={"evaluate": "scoring"}) as monitor:
        monitor.progress("prepare", 0, 1)
        monitor.event(Event("info", "bench", "base: tiny.gguf, 4 answers"))
        monitor.progress("evaluate", 2, 4)
        monitor.event(Event("warning", "reward_model", "\x1b[2J cut"))
    assert stream.getvalue() == "base: tiny.gguf, 4 answers\nwarning: ␛[2J cut\n"


def test_on_a_terminal_the_stage_is_a_bar_that_goes_away(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with ProgressMonitor(stream, words={"evaluate": "scoring"}) as monitor:
        monitor.progress("evaluate", 2, 4)
        monitor.event(Event("info", "bench", "base: tiny.gguf, 4 answers"))
        monitor.progress("evaluate", 3, 4)
        monitor.progress("reward", 1, 4)
    written = stream.getvalue()
    assert "base: tiny.gguf, 4 answers" in written
    assert "scoring" in written
    assert written.endswith(("\x1b[2K", "\x1b[?25h\r\x1b[1A\x1b[2K")), "the line is cleared"
    assert "\x1b[?25h" in written, "the cursor is there again"


def test_a_command_has_stages_and_words_of_its_own(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with ProgressMonitor(stream, words={"add": "adding the adapter"}) as monitor:
        monitor.progress("add", 1, 4)
    assert "adding the adapter" in stream.getvalue()


class Gone(io.StringIO):
    def write(self, text):
        raise OSError("the terminal has gone")


def test_a_terminal_that_has_gone_does_not_end_the_command():
    with ProgressMonitor(Gone(), words={"evaluate": "scoring"}) as monitor:
        monitor.event(Event("info", "bench", "base"))
        monitor.progress("evaluate", 2, 4)
