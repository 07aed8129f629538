"""Writing the trained adapter, for the sampler and for good."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np

from trainer.errors import ConfigError, ModelError, RetrogradError, TrainingError
from trainer.gguf.adapter import AdapterDtype, write_adapter
from trainer.gguf.file import GgufFile
from trainer.gguf.partial import written_whole
from trainer.merge.origin import is_merged
from trainer.model.adapter import Adapter
from trainer.rollout.engine import RolloutEngine

T = TypeVar("T")

_REFUSED = ".refused"
_ADDED_TO_NAME = 40


class ExportRefusedError(TrainingError):
    """The written file is not what was trained; nothing of it is at the output's path."""


def write(path: Path, adapter: Adapter, *, dtype: AdapterDtype) -> None:
    """Write the adapter's current factors as a llama.cpp LoRA file.

    Raises RetrogradError when the file cannot be written.
    """
    factors = {name: value.numpy() for name, value in adapter.state().items()}
    with _disk_errors(path):
        write_adapter(
            path, factors, architecture=adapter.architecture, alpha=adapter.alpha, dtype=dtype
        )


def write_checked(
    path: Path, adapter: Adapter, *, dtype: AdapterDtype, check: Callable[[Path], T]
) -> T:
    """Write beside ``path``, read back, ``check``, and only then take the place of ``path``.

    Raises ExportRefusedError when the file does not hold the factors, rounded to ``dtype``, or
    ``check`` raises TrainingError; the refused file is kept as ``<name>.refused`` and what was at
    ``path`` before stays. Raises RetrogradError when a file cannot be written.
    """
    with _disk_errors(path), written_whole(path) as candidate:
        write(candidate, adapter, dtype=dtype)
        try:
            _compare_factors(candidate, adapter, dtype)
            return check(candidate)
        except TrainingError as error:
            refused = path.with_name(f"{path.name}{_REFUSED}")
            candidate.replace(refused)
            raise ExportRefusedError(f"{error} The file is kept as {refused}.") from error


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RetrogradError(
            f"{path}: cannot be written ({error.strerror or error}). Free some space, or set "
            f"[output] path to another place."
        ) from error


def _compare_factors(path: Path, adapter: Adapter, dtype: AdapterDtype) -> None:
    """See that every factor stands in the file, bit for bit as rounded, with the right alpha."""
    try:
        file = GgufFile(path)
    except ModelError as error:
        raise RetrogradError(
            f"{path}: was not written whole; the disk is full, or fails. Free some space, or set "
            f"[output] path to another place."
        ) from error
    rounding = np.float16 if dtype == "f16" else np.float32
    for name, value in adapter.state().items():
        with np.errstate(over="ignore"):
            expected = value.numpy().astype(rounding).astype(np.float32)
        if not np.isfinite(expected).all():
            raise TrainingError(
                f"the adapter's {name} holds numbers that are not finite as {dtype.upper()}: "
                f"training has diverged. Lower training.lr."
            )
        stored = file.read(name) if name in file.tensors else np.empty(0)
        # A rank of 1 is stored without its extent of 1.
        if stored.size != expected.size or (stored.reshape(expected.shape) != expected).any():
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
    """See before a run that its result can be written and replaces nothing but an earlier result;
    makes the folder.

    Raises ConfigError when it cannot: hours of training must not end in an unwritable file.
    """
    cure = "Set [output] path to a file in a folder that can be written."
    if path.is_dir():
        raise ConfigError(f"{path}: this is a folder. {cure}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The longest name that is made beside it: a file system may allow 255 bytes.
        probe = path.with_name(f".{path.name}.{'x' * _ADDED_TO_NAME}")
        probe.touch(exist_ok=False)
        probe.unlink()
        _check_replaceable(path, cure)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}). {cure}") from error


def _check_replaceable(path: Path, cure: str) -> None:
    if not path.exists():
        return
    if not path.is_file():
        raise ConfigError(f"{path}: this is a device or a pipe. {cure}")
    if not os.access(path, os.W_OK):
        raise ConfigError(f"{path}: exists and cannot be replaced. {cure}")
    with path.open("rb") as stream:
        head = stream.read(4)
    if head and head != b"GGUF":
        raise ConfigError(
            f"{path}: exists and is no GGUF file, so it is not replaced. Set [output] path to a "
            f"name of its own, or remove the file."
        )
    if _is_foreign_model(path):
        raise ConfigError(
            f"{path}: exists and is a model that retrograd did not make, so it is not replaced. "
            f"Set [output] path to a name of its own, or remove the file."
        )


def _is_foreign_model(path: Path) -> bool:
    try:
        file = GgufFile(path)
    except ModelError:  # damaged, and no loss
        return False
    return file.text("general.type") != "adapter" and not is_merged(file)
