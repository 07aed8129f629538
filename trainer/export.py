"""Writing the trained adapter."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from trainer.errors import ConfigError, RetrogradError
from trainer.gguf.adapter import AdapterDtype, write_adapter
from trainer.model.adapter import Adapter


def write(path: Path, adapter: Adapter, *, dtype: AdapterDtype) -> None:
    """Write the adapter's current factors as a llama.cpp LoRA file.

    Raises RetrogradError when the file cannot be written.
    """
    factors = {name: value.numpy() for name, value in adapter.state().items()}
    try:
        write_adapter(
            path, factors, architecture=adapter.architecture, alpha=adapter.alpha, dtype=dtype
        )
    except OSError as error:
        raise RetrogradError(f"{path}: cannot be written ({error.strerror or error}).") from error


def check_writable(path: Path) -> None:
    """See before a run that its result can be written; makes the folder.

    Raises ConfigError when it cannot: hours of training must not end in an unwritable file.
    """
    cure = "Set [output] path to a file in a folder that can be written."
    if path.is_dir():
        raise ConfigError(f"{path}: this is a folder. {cure}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".retrograd-")
        os.close(handle)
        Path(name).unlink()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}). {cure}") from error
    if path.exists() and not os.access(path, os.W_OK):
        raise ConfigError(f"{path}: exists and cannot be replaced. {cure}")
