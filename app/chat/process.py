"""The process that answers, as the server holds it: started, asked, and ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from app.store.marks import environment

Message = dict[str, Any]

COMMAND = (sys.executable, "-m", "app.chat.worker")
_FIELDS: dict[str, set[str]] = {
    "ready": set(),
    "failed": {"message"},
    "text": {"id", "text"},
    "error": {"id", "message"},
    "done": {"id", "ending", "tokens", "dropped"},
}
"""Of the kinds of messages that the process sends."""
_END_SECONDS = 2.0
"""How long a process that has closed its output may take to end."""
_SHOWN = 120
_LAST_WORDS = 400
"""So many characters of a line, and of what was written on standard error, are quoted."""


Stamp = tuple[int, int, int]
"""Of a file: its size in bytes, when it was written (ns), and its inode."""


def stamp(path: str) -> Stamp:
    """Raises OSError."""
    seen = Path(path).stat()
    return seen.st_size, seen.st_mtime_ns, seen.st_ino


@dataclass(frozen=True, slots=True)
class Partners:
    """A base and an adapter on it, to be talked to in a context of ``ctx`` tokens, with what the
    run gave its chat template.

    ``stamps`` are what the files were when they were named: a file that was written anew since
    makes other partners of the same paths.
    """

    model: str
    adapter: str
    ctx: int
    exact: bool = False
    use_gpu: bool = True
    variables: dict[str, Any] = field(default_factory=dict, hash=False)
    merge_system: bool = False
    stamps: tuple[Stamp, ...] = ()


class Answering:
    """A running ``app.chat.worker``. ``tell`` gets each of its messages on a thread of this object,
    and at its end, whatever ended it, one of the kind ``gone``, whose ``message`` says why.
    `kill` returns at once, `send` and `close` may have to wait for the process. Raises OSError."""

    def __init__(self, partners: Partners, tell: Callable[[Message], None]) -> None:
        self.partners = partners
        self._tell = tell
        self._writing = threading.Lock()
        # Without a name: it goes with the process.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the thread that reads
        try:
            self._popen = subprocess.Popen(
                COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=environment(),
                encoding="utf-8",
                errors="replace",
                start_new_session=True,
            )
        except BaseException:
            self._errors.close()
            raise
        self._reader = threading.Thread(target=self._read, name="answers", daemon=True)
        self._reader.start()
        self.send(asdict(partners))

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    def send(self, message: Message) -> None:
        """A process that has gone gets nothing; its end is told."""
        assert self._popen.stdin is not None
        with self._writing, suppress(OSError, ValueError):
            self._popen.stdin.write(json.dumps(message) + "\n")
            self._popen.stdin.flush()

    def kill(self) -> None:
        """Let it end; again is no harm."""
        self._popen.kill()

    def close(self) -> None:
        """End it and wait for that. From any thread but that of ``tell``; again is no harm."""
        self.kill()
        self._reader.join()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        fault = ""
        try:
            with self._popen.stdout as answers:
                for line in answers:
                    self._tell(_message_in(line))
        except ValueError as error:
            fault = f"has sent what is no message ({error}), and was ended"
            self.kill()
        finally:
            status = self._ended()
            assert self._popen.stdin is not None
            with self._writing, suppress(OSError):
                self._popen.stdin.close()
            with self._errors:
                words = _last_words(self._errors.fileno())
            self._tell({"kind": "gone", "message": _why(fault, status, words)})

    def _ended(self) -> int:
        """Its status, once it has ended."""
        try:
            return self._popen.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._popen.wait()


def _message_in(line: str) -> Message:
    """Raises ValueError for a line that is no message."""
    try:
        message = json.loads(line)
        fits = isinstance(message, dict) and _FIELDS[message["kind"]] <= message.keys()
    except (ValueError, KeyError, TypeError):
        fits = False
    if not fits:
        raise ValueError(repr(line.rstrip("\n")[:_SHOWN]))
    found: Message = message
    return found


def _last_words(file: int) -> str:
    """The end of what it has written on standard error, from the beginning of a line where there
    is one."""
    size = os.fstat(file).st_size
    tail = os.pread(file, _LAST_WORDS, max(0, size - _LAST_WORDS)).decode("utf-8", "replace")
    if size > _LAST_WORDS:
        tail = tail.partition("\n")[2] or tail
    return tail.strip()


def _why(fault: str, status: int, words: str) -> str:
    how = fault or f"has ended ({_named(status)})"
    memory = (
        " If the machine has no memory left for the model, the system ends it."
        if status == -signal.SIGKILL and not fault
        else ""
    )
    quoted = f" The last that it wrote:\n{words}" if words else ""
    return f"The process that answers {how}.{memory}{quoted}"


def _named(status: int) -> str:
    if status >= 0:
        return f"status {status}"
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:
        return f"by signal {-status}"
