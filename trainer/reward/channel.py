"""Lines to and from a reward program, written while they are read."""

from __future__ import annotations

import os
import selectors
import time
from collections import deque
from collections.abc import Callable

from trainer.reward.exchange import ExchangeLog
from trainer.reward.process import ProgramProcess
from trainer.reward.protocol import MAX_LINE_BYTES, STDOUT_ADVICE
from trainer.reward.report import ProgramError

_CHUNK_BYTES = 64 * 1024
_LOOK_SECONDS = 0.25


class Channel:
    """Both ends of the conversation, on one thread.

    Lines to send wait here until the program takes them; waiting for a reply sends them. So a
    program may answer one by one or only at the end, and neither side can block the other.
    """

    def __init__(self, process: ProgramProcess, exchange: ExchangeLog | None) -> None:
        self._process = process
        self._exchange = exchange
        self._outgoing = bytearray()
        self._input_ends = False
        self._lines: deque[bytes] = deque()
        self._partial = bytearray()
        self._at_end = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(process.stdout, selectors.EVENT_READ)

    def send(self, line: bytes) -> None:
        """Takes a line with its newline; ``next_line`` goes on with what does not fit now."""
        if self._exchange is not None:
            self._exchange.sent(line.decode("ascii").removesuffix("\n"))
        self._outgoing += line
        self._write()

    def end_input(self) -> None:
        """Closes the program's standard input once everything is sent."""
        self._input_ends = True
        self._write()

    def next_line(
        self, deadline: float, on_silence: Callable[[], None] | None = None
    ) -> bytes | None:
        """The next line without its newline, or None when no more can come.

        ``deadline`` is on the monotonic clock; ``TimeoutError`` when it passes. ``on_silence`` is
        called a few times a second while nothing comes. Raises ``ProgramError`` for a line beyond
        the limit.
        """
        while not self._lines:
            self._refuse_overlong(self._partial)
            if self._at_end:
                return None
            if time.monotonic() >= deadline:
                raise TimeoutError
            if not self._exchange_bytes(deadline) and on_silence is not None:
                on_silence()
        line = self._lines.popleft()
        self._refuse_overlong(line)
        self._tell(line)
        return line

    def take_unfinished(self) -> bytes:
        """What came after the last newline."""
        unfinished = bytes(self._partial)
        self._partial.clear()
        if unfinished:
            self._tell(unfinished)
        return unfinished

    def discard_until(self, deadline: float) -> None:
        """Throws away what the program still writes, until it ends or ``deadline``."""
        while not self._at_end and time.monotonic() < deadline:
            self._exchange_bytes(deadline)
            self._lines.clear()
            self._partial.clear()

    def close(self) -> None:
        self._selector.close()

    def _tell(self, line: bytes) -> None:
        if self._exchange is not None:
            self._exchange.received(line.decode("utf-8", "backslashreplace"))

    def _refuse_overlong(self, line: bytes | bytearray) -> None:
        if len(line) > MAX_LINE_BYTES:
            raise ProgramError(
                f"wrote a line of more than {MAX_LINE_BYTES} bytes, which is the limit",
                line=bytes(line),
                advice=STDOUT_ADVICE,
            )

    def _exchange_bytes(self, deadline: float) -> bool:
        """Waits a moment, moves what can be moved; false when nothing came."""
        wait = max(0.0, min(_LOOK_SECONDS, deadline - time.monotonic()))
        came = False
        for key, _ in self._selector.select(wait):
            if key.fileobj is self._process.stdout:
                came = self._read()
            else:
                self._write()
        if came or not self._process.exited():
            return came
        # A process that it left behind may hold its stdout open: the end of the stream would
        # never come, so what is there now is all.
        came = self._read()
        self._at_end = not came
        return came

    def _read(self) -> bool:
        """Takes one chunk from stdout; false when there is none."""
        try:
            chunk = os.read(self._process.stdout.fileno(), _CHUNK_BYTES)
        except BlockingIOError:
            return False
        self._at_end = not chunk
        self._partial += chunk
        if b"\n" in chunk:
            *lines, rest = self._partial.split(b"\n")
            self._lines.extend(bytes(line) for line in lines)
            self._partial = rest
        return bool(chunk)

    def _write(self) -> None:
        if self._process.stdin.closed:
            return
        try:
            if self._outgoing:
                del self._outgoing[: os.write(self._process.stdin.fileno(), self._outgoing)]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            # Its answers, or their end, tell more than the broken pipe does.
            self._outgoing.clear()
            self._input_ends = True
        self._follow_input()

    def _follow_input(self) -> None:
        stdin = self._process.stdin
        watched = stdin in self._selector.get_map()
        if self._outgoing and not watched:
            self._selector.register(stdin, selectors.EVENT_WRITE)
        if not self._outgoing and watched:
            self._selector.unregister(stdin)
        if not self._outgoing and self._input_ends:
            stdin.close()
