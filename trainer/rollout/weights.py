"""Which file the sampler reads: the base as it is, or a copy with wider weights."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from trainer.gguf.file import GgufFile
from trainer.llama.quantize import WIDE_TYPES, WideKind
from trainer.rollout.copies import copy_bytes, dequantised_copy

Choice = Literal["auto", "file", "f16", "f32"]
WeightsKind = Literal["file", "f16", "f32"]

_MARGIN = 1.25


@dataclass(frozen=True, slots=True)
class RolloutWeights:
    """``kind`` is what ``path`` holds, and ``reason`` says in a few words why it was chosen."""

    path: Path
    kind: WeightsKind
    reason: str


def weights_for_rollout(
    choice: Choice,
    base: Path,
    *,
    cache: Path,
    digest: str,
    reserved_bytes: int = 0,
    threads: int = 1,
) -> RolloutWeights:
    """Find or make the file to sample from. ``auto`` is f16 where memory and disk allow, else file.

    ``reserved_bytes`` is memory that the trainer is going to take beside the sampler.

    Raises:
        ModelError: the base cannot be read, or the copy asked for cannot be made.
    """
    file = GgufFile(base)
    if choice == "file":
        return RolloutWeights(base, "file", "as configured")
    kind: WideKind = "f32" if choice == "f32" else "f16"
    if _holds_already(file, kind):
        return RolloutWeights(base, kind, f"the base's matrices are {kind.upper()} already")
    if choice == "auto" and (shortage := _shortage(file, cache, reserved_bytes)):
        return RolloutWeights(base, "file", shortage)
    reason = "as configured" if choice != "auto" else "memory allows a 16-bit copy"
    copy = dequantised_copy(base, kind, cache, digest=digest, threads=threads)
    return RolloutWeights(copy, kind, reason)


def _holds_already(file: GgufFile, kind: WideKind) -> bool:
    matrices = [info for info in file.tensors.values() if len(info.shape) > 1]
    return all(info.kind == WIDE_TYPES[kind].tensor_type for info in matrices)


def _shortage(file: GgufFile, cache: Path, reserved_bytes: int) -> str | None:
    size = copy_bytes(file, "f16")
    needed = int(size * _MARGIN) + reserved_bytes
    available = psutil.virtual_memory().available
    if needed > available:
        return (
            f"a 16-bit copy needs {needed / 2**20:,.0f} MiB of memory, and "
            f"{available / 2**20:,.0f} MiB are available"
        )
    folder = next(place for place in (cache, *cache.parents) if place.exists())
    free = shutil.disk_usage(folder).free
    if int(size * _MARGIN) > free:
        return (
            f"a 16-bit copy needs {size * _MARGIN / 2**20:,.0f} MiB in {cache}, and "
            f"{free / 2**20:,.0f} MiB are free"
        )
    return None
