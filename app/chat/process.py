"""The process that answers, as the server holds it: started, asked, and ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

Message = dict[str, Any]

_NOT_PASSED_ON = ("RETROGRAD_TOKEN", "RETROGRAD_STORE")


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
    """A running ``app.chat.worker``. ``tell`` gets each of its messages, and at its end one of the
    kind ``gone``, on a thread of this object. Raises OSError."""

    def __init__(self, partners: Partners, tell: Callable[[Message], None]) -> None:
        self.partners = partners
        self._tell = tell
        environment = {k: v for k, v in os.environ.items() if k not in _NOT_PASSED_ON}
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "app.chat.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            encoding="utf-8",
            start_new_session=True,
        )
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
        with suppress(OSError, ValueError):
            self._popen.stdin.write(json.dumps(message) + "\n")
            self._popen.stdin.flush()

    def close(self) -> None:
        """From any thread; again is no harm."""
        self._popen.kill()
        self._popen.wait()
        if threading.current_thread() is not self._reader:
            self._reader.join()
        assert self._popen.stdin is not None
        with suppress(OSError):
            self._popen.stdin.close()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        with self._popen.stdout as answers:
            for line in answers:
                self._tell(json.loads(line))
        self._tell({"kind": "gone", "status": self._popen.wait()})
