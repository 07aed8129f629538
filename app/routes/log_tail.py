"""The end of a log, made fit to be shown."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from app.text import neutralise

TAIL_BYTES = 64 * 1024
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class LogTail:
    """``text`` has control and direction characters in a visible form; ``size`` is that of the
    whole log, in bytes, and ``cut`` tells whether its beginning was left out."""

    text: str
    size: int
    cut: bool


def read_tail(path: Path, most: int = TAIL_BYTES) -> LogTail | None:
    """The last whole lines within ``most`` bytes of the file; None where there is none. A symlink
    is none: what it leads to is not the run's."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        state = os.fstat(number)
        if not stat.S_ISREG(state.st_mode):
            return None
        start = max(0, state.st_size - most)
        content = os.pread(number, most, start)
    finally:
        os.close(number)
    if start:
        content = content.partition(b"\n")[2] or content
    text = _COLOUR.sub("", content.decode("utf-8", "replace"))
    return LogTail(neutralise(text, keep_newlines=True), state.st_size, start > 0)
