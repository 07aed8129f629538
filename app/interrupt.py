"""The end of a command by a signal."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_AGAIN_SECONDS = 0.02


class Signalled(KeyboardInterrupt):
    """Raised where a signal ends the run at once."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.exit_status = 128 + number


@contextmanager
def interrupts_that_last() -> Iterator[None]:
    """Inside, no interrupt is lost and none is printed by the interpreter.

    Python runs a signal's handler at the first bytecode that comes, which may belong to a function
    that native code calls (llama.cpp logs through one, at every line while it loads a model). What
    is raised there cannot pass through the native code: the interpreter prints it and goes on.
    Here it goes to ``sys.unraisablehook`` unprinted, and the signal comes again a moment later.
    """
    before = sys.unraisablehook
    main_thread = threading.get_ident()
    again: list[threading.Timer] = []

    def take(lost: sys.UnraisableHookArgs) -> None:
        if not isinstance(lost.exc_value, KeyboardInterrupt):
            before(lost)
            return
        error = lost.exc_value
        number = error.number if isinstance(error, Signalled) else signal.SIGINT
        # To the thread itself, so that a wait of the operating system's ends as well.
        timer = threading.Timer(_AGAIN_SECONDS, signal.pthread_kill, [main_thread, number])
        timer.daemon = True
        again.append(timer)
        timer.start()

    sys.unraisablehook = take
    try:
        yield
    finally:
        sys.unraisablehook = before
        for timer in again:
            timer.cancel()


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP raise ``Signalled``, as SIGINT raises KeyboardInterrupt, so that
    whatever is open is closed and no reward program outlives the command. Where SIGHUP is ignored,
    as under ``nohup``, it stays ignored."""

    def end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise Signalled(number)

    numbers = [signal.SIGTERM, signal.SIGHUP]
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        numbers.remove(signal.SIGHUP)
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
