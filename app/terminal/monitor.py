"""The Monitor that a person watches."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol, TextIO

from rich.console import Console

from app.terminal.history import EvaluationRow, RunHistory, UpdateRow
from app.terminal.live import LivePrinter
from app.terminal.plain import PlainPrinter
from app.terminal.samples import Sample, choose, is_due
from app.terminal.summary import Leads, Summary, summarise
from trainer.closing import Closing
from trainer.monitor import (
    Event,
    GroupRecord,
    Outcome,
    RunInfo,
    SilentMonitor,
    Stage,
    UpdateStatus,
)


class Printer(Protocol):
    def started(self, history: RunHistory) -> None: ...
    def updated(self, row: UpdateRow) -> None: ...
    def evaluated(self, row: EvaluationRow) -> None: ...
    def sampled(self, samples: Sequence[Sample]) -> None: ...
    def happened(self, event: Event) -> None: ...
    def finished(self, summary: Summary) -> None: ...
    def close(self) -> None: ...


class TerminalMonitor(SilentMonitor, Closing):
    """Bars and aligned rows on a terminal; one self-contained line an update elsewhere, and where
    ``NO_COLOR`` is set or ``TERM`` is ``dumb``.

    ``leads`` are asked for at the end, and named there. Leaving the ``with`` block gives the
    terminal back, however the run ended.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        leads: Callable[[], Leads] = Leads,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._printer = choose_printer(stream if stream is not None else sys.stderr)
        self._leads = leads
        self._clock = clock
        self._history: RunHistory | None = None
        self._groups: tuple[int, Sequence[GroupRecord]] = (0, ())

    def close(self) -> None:
        # A terminal that is gone cannot be given back, and how the run ended must not change by it.
        with suppress(OSError):
            self._printer.close()

    def run_started(self, info: RunInfo) -> None:
        self._history = RunHistory(info, self._clock)
        self._printer.started(self._history)

    def progress(self, stage: Stage, done: int, total: int) -> None:
        self._running().progress(stage, done, total)

    def trajectories(self, update: int, groups: Sequence[GroupRecord]) -> None:
        self._groups = (update, groups)

    def metrics(self, update: int, status: UpdateStatus, values: Mapping[str, float]) -> None:
        history = self._running()
        self._printer.updated(history.add(update, status, values))
        sampled_at, groups = self._groups
        self._groups = (0, ())
        if sampled_at == update and is_due(update, history.info.updates):
            self._printer.sampled(choose(update, groups))

    def evaluation(
        self, update: int, groups: Sequence[GroupRecord], values: Mapping[str, float]
    ) -> None:
        self._printer.evaluated(self._running().evaluated(update, len(groups), values))

    def event(self, event: Event) -> None:
        if event.code == "checkpoint" and event.level == "info":
            # One a minute, for hours: of interest is the last one, where a run did not end.
            self._running().checkpoint = str(event.data["path"])
            return
        if event.code == "reward_stderr":
            return  # a program may log each answer; the store keeps it, and errors quote it
        self._printer.happened(event)

    def run_finished(self, outcome: Outcome) -> None:
        self._printer.finished(summarise(self._running(), outcome, self._leads()))

    def _running(self) -> RunHistory:
        if self._history is None:
            raise ValueError("the run has not started")
        return self._history


def choose_printer(stream: TextIO) -> Printer:
    capable = (
        stream.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
        and (stream.encoding or "").lower().replace("-", "").startswith("utf")
    )
    return LivePrinter(Console(file=stream, highlight=False)) if capable else PlainPrinter(stream)
