"""What a run's process prints: one file, in which each process of the run has its part."""

from __future__ import annotations

import time
from pathlib import Path

from app.jobs.workspace import LOG

_BEGINS = b"-- retrograd starts this run's process: "
_MOST_BYTES = 3000


def beginning() -> bytes:
    """The line that stands before what a process prints that begins now."""
    return _BEGINS + time.strftime("%Y-%m-%d %H:%M:%S").encode() + b" --\n"


def log_tail(folder: Path) -> str:
    """The end of what the newest process of the run in ``folder`` has printed, or nothing."""
    try:
        with (folder / LOG).open("rb") as log:
            log.seek(0, 2)
            log.seek(max(0, log.tell() - _MOST_BYTES))
            content = log.read()
    except OSError:
        return ""
    before, mark, own = content.rpartition(_BEGINS)
    if mark and (not before or before.endswith(b"\n")):
        content = own.partition(b"\n")[2]
    return content.decode(errors="replace").strip()
