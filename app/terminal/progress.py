"""How far a command is that has no run to tell of: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from app.text import neutralise
from trainer.closing import Closing
from trainer.monitor import Event, SilentMonitor

_WORDS: Mapping[str, str] = {
    "prepare": "preparing",
    "reward": "rewarding",
}


class ProgressMonitor(SilentMonitor, Closing):
    """Shows the stage at hand while it lasts, and what happens as lines that stay. ``words`` are
    for stages, in place of the usual ones or beside them."""

    def __init__(
        self, stream: TextIO | None = None, *, words: Mapping[str, str] | None = None
    ) -> None:
        self._console = Console(file=stream or sys.stderr, highlight=False)
        self._words: dict[str, str] = {**_WORDS, **(words or {})}
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task(self._words["prepare"], total=None)
        self._stage = "prepare"
        self._bar.start()

    def progress(self, stage: str, done: int, total: int) -> None:
        if stage != self._stage or done == 0:
            self._stage = stage
            self._bar.reset(self._task, description=self._words.get(stage, stage))
        self._bar.update(self._task, completed=done, total=total)

    def event(self, event: Event) -> None:
        label = "" if event.level == "info" else f"{event.level}: "
        line = Text(label + neutralise(event.message, keep_newlines=True))
        # A terminal that has gone is no reason to lose the result.
        with suppress(OSError):
            self._console.print(line, soft_wrap=True)

    def close(self) -> None:
        with suppress(OSError):
            self._bar.stop()
