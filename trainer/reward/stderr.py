"""Reads a program's stderr for as long as it lives, and keeps the end of it."""

from __future__ import annotations

import os
import selectors
import threading
from typing import IO

TAIL_BYTES = 16 * 1024
_CHUNK_BYTES = 64 * 1024


class StderrTail:
    """A thread that drains ``stream`` so that the program never waits for us.

    The tail is counted in bytes, not in lines: one endless line fills no memory. Where the thread
    cannot be started, ``stream`` is left to the caller.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        os.set_blocking(stream.fileno(), False)
        self._tail = bytearray()
        self._fresh = 0
        self._lock = threading.Lock()
        self._stop_reader, self._stop_writer = os.pipe()
        self._thread = threading.Thread(target=self._drain, name="reward-stderr", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            os.close(self._stop_writer)
            os.close(self._stop_reader)
            raise

    def text(self) -> str:
        with self._lock:
            return self._tail.decode("utf-8", "replace")

    def fresh(self) -> str:
        """What came since the last call, at most the tail."""
        with self._lock:
            new = self._tail[len(self._tail) - self._fresh :]
            self._fresh = 0
        return new.decode("utf-8", "replace")

    def stop(self) -> None:
        """Takes what is left and closes the stream.

        A process that left the group may hold stderr open for ever, so the thread is told to stop
        rather than left to wait for the end of the stream.
        """
        os.close(self._stop_writer)
        self._thread.join()
        os.close(self._stop_reader)
        self._stream.close()

    def _drain(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._stream, selectors.EVENT_READ)
            selector.register(self._stop_reader, selectors.EVENT_READ)
            while True:
                ready = {key.fd for key, _ in selector.select()}
                ended = self._stream.fileno() in ready and not self._take()
                if ended or self._stop_reader in ready:
                    break
        if not ended:
            self._take()

    def _take(self) -> bool:
        """Reads what is there, at most one chunk; false at the end of the stream."""
        try:
            chunk = os.read(self._stream.fileno(), _CHUNK_BYTES)
        except BlockingIOError:
            return True
        with self._lock:
            self._tail += chunk
            del self._tail[:-TAIL_BYTES]
            self._fresh = min(self._fresh + len(chunk), len(self._tail))
        return bool(chunk)
