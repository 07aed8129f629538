"""Ctrl-C, SIGTERM and SIGHUP: the first asks the run to end well, the second ends it at once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

from app.interrupt import Signalled
from trainer.monitor import Event, RunInfo, SilentMonitor, Stage

_NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}


class StopOnSignal(SilentMonitor):
    """Turns the first signal into a wish to stop. While a run prepares there is nothing to keep:
    the next call of the monitor then ends it, by raising ``Signalled``. Before the run has started
    no call may come for long, so the signal itself raises. The second signal raises ``Signalled``
    where it finds the run; inside a callback of native code only
    ``app.interrupt.interrupts_that_last`` makes that hold.

    A terminal that closes may send SIGHUP twice, once by its shell and once by the system, so the
    repetition says nothing new. Where SIGHUP is ignored, as under ``nohup``, it stays ignored.

    ``notify`` gets a line for the person who waits. It is called on the trainer's thread, from a
    call of the monitor, because a signal handler may interrupt a write that is half done. A context
    manager: the handlers that were there before come back at its end.
    """

    def __init__(self, notify: Callable[[str], None]) -> None:
        self._notify = notify
        self._received: int | None = None
        self._started = False
        self._ended = False
        self._told = False
        self._worth_keeping = False
        self._before: dict[int, signal.Handlers | Callable[..., object] | int | None] = {}

    @property
    def exit_status(self) -> int | None:
        """128 + the signal's number, where one came."""
        return None if self._received is None else 128 + self._received

    def __enter__(self) -> Self:
        for number in _NAMES:
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue
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

    def run_started(self, info: RunInfo) -> None:  # noqa: ARG002
        self._started = True

    def progress(self, stage: Stage, done: int, total: int) -> None:  # noqa: ARG002
        self._started = True
        self._attend()
        self._worth_keeping = self._worth_keeping or stage != "prepare"

    def event(self, event: Event) -> None:  # noqa: ARG002
        self._attend()

    def should_stop(self) -> bool:
        self._attend()
        return self._received is not None

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self._started and number == self._received == signal.SIGHUP:
            return
        first = self._received is None
        if first:
            self._received = number
        if not first or not self._started:
            self._ended = True
            raise Signalled(number)

    def _attend(self) -> None:
        """Answer a signal that came since the last call."""
        if self._received is None or self._ended or self._told:
            return
        if not self._worth_keeping:
            self._ended = True
            raise Signalled(self._received)
        self._told = True
        at_once = " Press Ctrl-C once more to stop at once."
        self._notify(
            f"{_NAMES[signal.Signals(self._received)]}: stopping, and keeping the adapter as "
            "it is after the last finished update."
            + (at_once if self._received == signal.SIGINT else "")
        )
