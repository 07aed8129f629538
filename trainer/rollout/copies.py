"""Copies of a model with wider weights to sample from, made by llama.cpp's own quantiser.

llama.cpp multiplies quantised weights with 8-bit activations, so it samples from a policy that is
measurably not the one being trained. A 16-bit copy of the same weights closes most of that gap and
is the faster one as soon as several answers are generated at once. Only the tensor types change:
rows keep the file's order, norms and biases keep their type.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from trainer.errors import ModelError
from trainer.gguf.file import GgufFile
from trainer.gguf.partial import written_whole
from trainer.llama import ggml
from trainer.llama.quantize import WIDE_TYPES, WideKind, widen

_DISK_MARGIN = 64 << 20


def cache_folder() -> Path:
    """Where copies of models are kept: RETROGRAD_CACHE, or the user's cache folder."""
    if own := os.environ.get("RETROGRAD_CACHE"):
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "retrograd"


def copy_bytes(base: GgufFile, kind: WideKind) -> int:
    """The size of the copy that `dequantised_copy` makes, to within the header's alignment."""
    width = WIDE_TYPES[kind].weight_bytes
    header = min(info.offset for info in base.tensors.values())
    return header + sum(
        info.count * width if len(info.shape) > 1 else info.size for info in base.tensors.values()
    )


def dequantised_copy(
    base: Path, kind: WideKind, cache: Path, *, digest: str, threads: int = 1
) -> Path:
    """A copy of ``base`` whose matrices are all F16 or all F32, made once and kept in ``cache``.

    ``digest`` is the hash of the base's content; the copy is named by it, so a base that is moved
    finds its copy again, and one that changes gets another. A copy appears under its name complete
    or not at all.

    Raises:
        ModelError: the disk is too full, the base cannot be read, or the quantiser failed or left
            a matrix in another type.
    """
    file = GgufFile(base)
    target = cache / f"{digest[:32]}-{kind}.gguf"
    if _is_usable(target, file, kind):
        return target
    _make_folder(cache)
    _check_disk(file, kind, cache)
    with written_whole(target) as partial:
        widen(base, partial, kind, threads=threads)
        _check_copy(GgufFile(partial), file, kind)
    return target


def _is_usable(target: Path, base: GgufFile, kind: WideKind) -> bool:
    """Whether a copy made earlier is there and whole; one that is not is made again."""
    if not target.is_file():
        return False
    try:
        _check_copy(GgufFile(target), base, kind)
    except ModelError:
        return False
    return True


def _check_copy(copy: GgufFile, base: GgufFile, kind: WideKind) -> None:
    wanted = WIDE_TYPES[kind].tensor_type
    for name, info in base.tensors.items():
        made = copy.tensors.get(name)
        if made is None or made.shape != info.shape:
            raise ModelError(f"{copy.path}: tensor {name} of {base.path} is missing or misshapen")
        kept = info.kind == made.kind == WIDE_TYPES["f32"].tensor_type
        if made.kind != wanted and not kept:
            raise ModelError(
                f"{base.path}: llama.cpp leaves tensor {name} as {ggml.type_name(made.kind)} in a "
                f'copy of type {kind}: set rollout_weights = "file"'
            )


def _make_folder(cache: Path) -> None:
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(
            f"{cache}: the folder for copies of models cannot be made ({error.strerror}): set "
            'RETROGRAD_CACHE to a folder that can be written, or rollout_weights = "file"'
        ) from error


def _check_disk(base: GgufFile, kind: WideKind, cache: Path) -> None:
    needed = copy_bytes(base, kind) + _DISK_MARGIN
    free = shutil.disk_usage(cache).free
    if needed > free:
        raise ModelError(
            f"{cache}: the {kind} copy of {base.path} needs {needed / 2**20:,.0f} MiB and "
            f"{free / 2**20:,.0f} MiB are free: make room, set RETROGRAD_CACHE to another disk, or "
            'set rollout_weights = "file"'
        )
