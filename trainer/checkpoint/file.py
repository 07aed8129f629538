"""One checkpoint as one file: whole or recognisably not.

The file is a head (`trainer.checkpoint.head`) and then torch's archive of plain values and tensors.
It is written beside its place, forced to the disk and renamed, so that a kill at any moment leaves
either the old file or the new one.
"""

from __future__ import annotations

import io
import os
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from trainer.checkpoint.head import UNNAMED, head, split
from trainer.errors import ConfigError

State = dict[str, Any]
"""Nested dicts and lists of tensors, numbers, texts, booleans and None."""

UNFINISHED = ".unfinished"


class DamagedCheckpointError(ConfigError):
    """A file that is not a whole checkpoint."""


def write(path: Path, state: State, run: str = UNNAMED) -> None:
    """Put ``state`` of ``run`` into ``path``, replacing what is there. Raises OSError."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    body = buffer.getbuffer()
    beside = path.with_name(path.name + UNFINISHED)
    try:
        with beside.open("wb") as file:
            file.write(head(run, body))
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def read(path: Path) -> State:
    """What `write` put there. Raises DamagedCheckpointError, which says what is wrong."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DamagedCheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        _, body = split(memoryview(content))
    except ValueError as error:
        raise DamagedCheckpointError(f"{path}: {error}") from error
    try:
        # weights_only: a checkpoint holds values, and no file may run code by being read.
        state = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise DamagedCheckpointError(
            f"{path}: holds other things than a checkpoint does"
        ) from error
    if not isinstance(state, dict):
        raise DamagedCheckpointError(f"{path}: holds other things than a checkpoint does")
    return state


def _sync_folder(folder: Path) -> None:
    """The rename itself has to reach the disk. Not every system lets a folder be opened."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
