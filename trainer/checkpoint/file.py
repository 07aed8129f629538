"""One checkpoint as one file: whole or recognisably not.

The file is a magic word, the SHA-256 of what follows, and then torch's archive of plain values and
tensors. It is written beside its place, forced to the disk and renamed, so that a kill at any
moment leaves either the old file or the new one.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from trainer.errors import ConfigError

State = dict[str, Any]
"""Nested dicts and lists of tensors, numbers, texts, booleans and None."""

_MAGIC = b"retrograd-checkpoint/1\n"
_DIGEST = hashlib.sha256().digest_size
UNFINISHED = ".unfinished"


class DamagedCheckpointError(ConfigError):
    """A file that is not a whole checkpoint."""


def write(path: Path, state: State) -> None:
    """Put ``state`` into ``path``, replacing what is there. Raises OSError."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    body = buffer.getbuffer()
    beside = path.with_name(path.name + UNFINISHED)
    try:
        with beside.open("wb") as file:
            file.write(_MAGIC)
            file.write(hashlib.sha256(body).digest())
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
    if not content.startswith(_MAGIC):
        raise DamagedCheckpointError(f"{path}: is not a checkpoint of retrograd")
    digest, body = content[len(_MAGIC) :][:_DIGEST], content[len(_MAGIC) + _DIGEST :]
    if hashlib.sha256(body).digest() != digest:
        raise DamagedCheckpointError(f"{path}: is damaged or was cut short")
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
