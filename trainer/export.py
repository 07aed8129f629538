"""Writing the trained adapter, for the sampler and for good."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np

from trainer.errors import ConfigError, RetrogradError, TrainingError
from trainer.gguf.adapter import AdapterDtype, write_adapter
from trainer.gguf.file import GgufFile
from trainer.model.adapter import Adapter
from trainer.rollout.engine import RolloutEngine

T = TypeVar("T")


class ExportRefusedError(TrainingError):
    """The written file is not what was trained; nothing of it is at the output's path."""


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
        raise RetrogradError(
            f"{path}: cannot be written ({error.strerror or error}). Free some space, or set "
            f"[output] path to another place."
        ) from error


def write_checked(
    path: Path, adapter: Adapter, *, dtype: AdapterDtype, check: Callable[[Path], T]
) -> T:
    """Write beside ``path``, read back, ``check``, and only then take the place of ``path``.

    Raises ExportRefusedError when the file does not hold the factors, rounded to ``dtype``, or
    ``check`` raises TrainingError; the refused file is kept as ``<name>.refused`` and what was at
    ``path`` before stays. Raises RetrogradError when a file cannot be written.
    """
    candidate = path.with_name(f"{path.name}.refused")
    write(candidate, adapter, dtype=dtype)
    try:
        _compare_factors(candidate, adapter, dtype)
        result = check(candidate)
    except TrainingError as error:
        raise ExportRefusedError(f"{error} The file is kept as {candidate}.") from error
    candidate.replace(path)
    return result


def _compare_factors(path: Path, adapter: Adapter, dtype: AdapterDtype) -> None:
    """See that every factor stands in the file, bit for bit as rounded, with the right alpha."""
    file = GgufFile(path)
    rounding = np.float16 if dtype == "f16" else np.float32
    for name, value in adapter.state().items():
        expected = value.numpy().astype(rounding).astype(np.float32)
        if name not in file.tensors or not np.array_equal(file.read(name), expected):
            raise TrainingError(f"{path}: the tensor {name} is not what was trained.")
    if file.get("adapter.lora.alpha", float) != float(np.float32(adapter.alpha)):
        raise TrainingError(f"{path}: the adapter's alpha is not {adapter.alpha}.")


@contextmanager
def load_into(engine: RolloutEngine, adapter: Adapter) -> Iterator[Path]:
    """Sample under ``adapter`` from now on, in F32 whatever the exported type will be.

    The file that llama.cpp read it from exists while the context lasts.
    """
    with tempfile.TemporaryDirectory(prefix="retrograd-") as folder:
        path = Path(folder) / "adapter.gguf"
        write(path, adapter, dtype="f32")
        engine.swap_adapter(path)
        yield path


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
