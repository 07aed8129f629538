"""Ctrl-C and SIGTERM: the first asks the run to end well, the second ends it at once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

from app.interrupt import Signalled
from trainer.monitor import SilentMonitor, Stage

_NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


class StopOnSignal(SilentMonitor):
    """Turns the first signal into a wish to stop, once there is something worth keeping.

    ``notify`` gets a line for the person who waits. It is called on the trainer's thread, from a
    call of the monitor, because a signal handler may interrupt a write that is half done. A context
    manager: the handlers that were there before come back at its end.
    """

    def __init__(self, notify: Callable[[str], None]) -> None:
        self._notify = notify
        self._received: int | None = None
        self._told = False
        self._worth_keeping = False
        self._before: dict[int, signal.Handlers | Callable[..., object] | int | None] = {}

    @property
    def exit_status(self) -> int | None:
        """128 + the signal's number, where one came."""
        return None if self._received is None else 128 + self._received

    def __enter__(self) -> Self:
        for number in _NAMES:
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def progress(self, stage: Stage, done: int, total: int) -> None:  # noqa: ARG002
        self._worth_keeping = self._worth_keeping or stage != "prepare"
        self._tell()

    def should_stop(self) -> bool:
        self._tell()
        return self._received is not None

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self._received is not None or not self._worth_keeping:
            raise Signalled(number)
        self._received = number

    def _tell(self) -> None:
        if self._received is not None and not self._told:
            self._told = True
            self._notify(
                f"{_NAMES[signal.Signals(self._received)]}: stopping, and keeping the adapter as "
                "it is now. Press Ctrl-C once more to stop at once."
            )
