"""One change of a draft at a time, whichever thread or server makes it."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.jobs.queue import QueueError
from app.jobs.workspace import LOCK

PATIENCE_SECONDS = 30.0
_PAUSE_SECONDS = 0.02


@contextmanager
def locked(folder: Path, patience: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Inside, nobody else changes, checks or starts the draft in ``folder``. It may be gone or have
    started by then: ask again. Raises QueueError where it is gone, or is not free in time."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError as error:
        raise QueueError(f"The folder of this draft, {folder}, is not there any more.") from error
    try:
        _wait_for(descriptor, folder, time.monotonic() + patience)
        yield
    finally:
        os.close(descriptor)  # which opens the lock


def _wait_for(descriptor: int, folder: Path, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise QueueError(
                    f"Draft {folder.name} is being changed at this moment; try again."
                ) from error
            time.sleep(_PAUSE_SECONDS)
        else:
            return
