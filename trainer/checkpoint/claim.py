"""One run at a time writes a folder of checkpoints, and the adapter that it belongs to."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trainer.errors import ConfigError


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Inside, no other process that asks for it has ``folder``; it need not be there. Where it
    cannot be locked, as on a medium that is read-only, nothing is promised.

    Raises ConfigError where another run has it. The lock ends with the process, however that ends.
    """
    path = folder.with_name(f".{folder.name}.lock")
    descriptor = _open(path)
    if descriptor is None:
        yield
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"{folder}: another run is writing its checkpoints there now. Wait until it has "
                "ended, stop it, or give this run another [output] path or [checkpoint] directory."
            ) from error
        except OSError:  # a file system without locks
            pass
        yield
        with suppress(OSError):  # the folder may have gone meanwhile
            path.unlink()
    finally:
        os.close(descriptor)


def _open(path: Path) -> int | None:
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    return None
