"""Files that appear under their name whole or not at all."""

from __future__ import annotations

import glob
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STALE_SECONDS = 3600.0


@contextmanager
def written_whole(target: Path) -> Iterator[Path]:
    """A name beside ``target`` to write to, which takes its place when the block ends well.

    What killed processes left of earlier attempts is removed; a young file may still be growing in
    another process, and stays.
    """
    _remove_stale(target)
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    try:
        yield partial
        _to_disk(partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _to_disk(path: Path) -> None:
    # A rename can reach the disk before the data does, and a power cut would then leave a file
    # with the right name, size and header, and zeros for weights.
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


def _remove_stale(target: Path) -> None:
    for partial in target.parent.glob(f".{glob.escape(target.name)}.*.partial"):
        if time.time() - partial.stat().st_mtime > STALE_SECONDS:
            partial.unlink(missing_ok=True)
