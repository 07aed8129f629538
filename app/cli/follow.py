"""A run of the queue as the terminal shows it that waits for it."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress

from app.cli.errors import say
from app.jobs import queue
from app.jobs.queue import QueueError
from app.store.database import Store
from app.store.models import Run
from app.store.status import OPEN
from app.text import neutralise, score
from trainer.health.headline import headline_of

_LOOK_SECONDS = 0.25
_LINE_SECONDS = 5.0
_STOP_SECONDS = 20.0
_STATUS = {"completed": 0, "stopped": 130}


class Follower:
    """One line that is written again and again on a terminal, and now and then elsewhere."""

    def __init__(self, store: Store, run_id: int) -> None:
        self._store, self._run_id = store, run_id
        self._left = threading.Event()
        self._live = sys.stderr.isatty()
        self._last, self._next_line = "", 0.0

    def follow(self) -> Run | None:
        """Wait until the run has ended; none where `finish` comes first, or it was deleted."""
        while not self._left.is_set():
            run = self._run()
            if run is None:
                return None
            if run.status not in OPEN:
                self._end(run)
                return run
            self._show(_line(run))
            self._left.wait(_LOOK_SECONDS)
        if self._live and self._last:  # what is said next is not part of the line
            print(file=sys.stderr, flush=True)
        return None

    def finish(self, watching: threading.Thread) -> int:
        """Nobody waits any more: a run that still goes on is stopped, and keeps what it has.
        Returns the exit status."""
        self._left.set()
        watching.join()
        run = self._run()
        if run is not None and run.status in OPEN:
            say("Stopping the run, and keeping its adapter.")
            with suppress(QueueError):  # it has ended in this moment
                queue.ask(self._store, self._run_id, "stop")
            run = self._wait()
        return 0 if run is None else _STATUS.get(run.status, 1)

    def _wait(self) -> Run | None:
        deadline = time.monotonic() + _STOP_SECONDS
        while (run := self._run()) is not None and run.status in OPEN:
            if time.monotonic() > deadline:
                say("It takes longer; it ends by itself after the update at hand.")
                break
            time.sleep(_LOOK_SECONDS)
        return run

    def _run(self) -> Run | None:
        with self._store.read() as session:
            return session.get(Run, self._run_id)

    def _show(self, line: str) -> None:
        if self._live:
            print(f"\r\x1b[2K{line}", end="", file=sys.stderr, flush=True)
        elif line != self._last and time.monotonic() >= self._next_line:
            print(line, file=sys.stderr, flush=True)
            self._next_line = time.monotonic() + _LINE_SECONDS
        self._last = line

    def _end(self, run: Run) -> None:
        if self._live:
            print("\r\x1b[2K", end="", file=sys.stderr)
        say(f"{_line(run)}: {neutralise(run.message, keep_newlines=True)}".rstrip(": "))


def _line(run: Run) -> str:
    line = f"{run.status}, update {run.completed} of {run.planned}"
    figures = [figure for figure in run.sparkline if figure is not None]
    if figures:
        word = headline_of(run.algorithm).word
        line += f", {word} {score(figures[0])} → {score(figures[-1])}"
    if run.seconds_per_update and run.status == "running":
        line += f", {(run.planned - run.completed) * run.seconds_per_update:.0f} s left"
    return line
