"""Copies of a model in another tensor type, made by llama.cpp's own quantiser.

llama.cpp multiplies quantised weights with 8-bit activations, so it samples from a policy that is
measurably not the one being trained. A 16-bit copy of the same weights closes most of that gap and
is the faster one as soon as several answers are generated at once. Only the tensor types change:
rows keep the file's order, norms and biases keep their type.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import llama_cpp
import numpy as np

from trainer.errors import ModelError
from trainer.gguf.file import GgufFile, TensorInfo
from trainer.llama import ggml
from trainer.llama.native import start_native

CopyKind = Literal["f16", "f32"]

COPY_TYPES: Final[Mapping[CopyKind, tuple[int, int, int]]] = {
    "f16": (llama_cpp.LLAMA_FTYPE_MOSTLY_F16, llama_cpp.GGML_TYPE_F16, 2),
    "f32": (llama_cpp.LLAMA_FTYPE_ALL_F32, llama_cpp.GGML_TYPE_F32, 4),
}
"""For each kind of copy: the file type, the type of its matrices, and their bytes a weight."""

_NAMES = (
    "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 F16 BF16 Q1_0 Q2_0 MXFP4_MOE Q2_K Q2_K_S Q3_K_S Q3_K_M Q3_K_L Q4_K_S "
    "Q4_K_M Q5_K_S Q5_K_M Q6_K TQ1_0 TQ2_0 IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ2_M IQ3_XXS IQ3_XS "
    "IQ3_S IQ3_M IQ4_NL IQ4_XS"
)
QUANTISED_FTYPES: Final[Mapping[str, int]] = {
    name: getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{name}") for name in _NAMES.split()
}
"""Every file type that llama.cpp's quantiser can make, by llama.cpp's name."""

_BUFFER_BYTES = 64 << 20
_DISK_MARGIN = 64 << 20
_STALE_SECONDS = 3600.0


def cache_folder() -> Path:
    """Where copies of models are kept: RETROGRAD_CACHE, or the user's cache folder."""
    if own := os.environ.get("RETROGRAD_CACHE"):
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "retrograd"


def copy_bytes(base: GgufFile, kind: CopyKind) -> int:
    """The size of the copy that `dequantised_copy` makes, to within the header's alignment."""
    width = COPY_TYPES[kind][2]
    header = min(info.offset for info in base.tensors.values())
    return header + sum(
        info.count * width if len(info.shape) > 1 else info.size for info in base.tensors.values()
    )


def dequantised_copy(
    base: Path, kind: CopyKind, cache: Path, *, digest: str, threads: int = 1
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
    _remove_stale(target)
    _check_disk(file, kind, cache)
    with _temporary(target) as partial:
        _quantise(base, partial, COPY_TYPES[kind][0], threads=threads)
        _check_copy(GgufFile(partial), file, kind)
        _to_disk(partial)
        partial.replace(target)
    return target


def quantised_copy(
    base: Path, ftype: int, target: Path, *, pure: bool = False, threads: int = 1
) -> Path:
    """Write ``base`` to ``target`` as llama.cpp file type ``ftype`` (see `QUANTISED_FTYPES`).

    With ``pure`` every matrix gets the type itself instead of llama.cpp's mixture for it. The types
    below three bits want to know which inputs matter; all are called equally important.

    Raises:
        ModelError: the base cannot be read, or the quantiser failed.
    """
    weights = [info for info in GgufFile(base).tensors.values() if len(info.shape) > 1]
    with _temporary(target) as partial:
        _quantise(base, partial, ftype, threads=threads, pure=pure, equally_important=weights)
        partial.replace(target)
    return target


def _quantise(
    base: Path,
    target: Path,
    ftype: int,
    *,
    threads: int,
    pure: bool = False,
    equally_important: list[TensorInfo] | None = None,
) -> None:
    log = start_native()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = ftype
    params.nthread = threads
    params.allow_requantize = True
    params.pure = pure
    params.max_buf_size = _BUFFER_BYTES
    entries = [
        (info.name.encode(), np.ones(info.shape[-1] * (info.count // _matrix(info)), np.float32))
        for info in equally_important or []
    ]
    importance = (llama_cpp.llama_model_imatrix_data * (len(entries) + 1))()
    for entry, (name, ones) in zip(importance, entries, strict=False):
        entry.name = name
        entry.data = ones.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        entry.size = ones.size
    if entries:
        params.imatrix = importance
    mark = log.mark()
    status = llama_cpp.llama_model_quantize(bytes(base), bytes(target), ctypes.byref(params))
    if status != 0:
        raise ModelError(f"{base}: llama.cpp cannot copy this model; {log.quote(mark)}")


def _matrix(info: TensorInfo) -> int:
    return info.shape[-1] * info.shape[-2]


def _is_usable(target: Path, base: GgufFile, kind: CopyKind) -> bool:
    """Whether a copy made earlier is there and whole; one that is not is made again."""
    if not target.is_file():
        return False
    try:
        _check_copy(GgufFile(target), base, kind)
    except ModelError:
        return False
    return True


def _check_copy(copy: GgufFile, base: GgufFile, kind: CopyKind) -> None:
    wanted = COPY_TYPES[kind][1]
    for name, info in base.tensors.items():
        made = copy.tensors.get(name)
        if made is None or made.shape != info.shape:
            raise ModelError(f"{copy.path}: tensor {name} of {base.path} is missing or misshapen")
        kept = info.kind == made.kind == llama_cpp.GGML_TYPE_F32
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


def _check_disk(base: GgufFile, kind: CopyKind, cache: Path) -> None:
    needed = copy_bytes(base, kind) + _DISK_MARGIN
    free = shutil.disk_usage(cache).free
    if needed > free:
        raise ModelError(
            f"{cache}: the {kind} copy of {base.path} needs {needed / 2**20:,.0f} MiB and "
            f"{free / 2**20:,.0f} MiB are free: make room, set RETROGRAD_CACHE to another disk, or "
            'set rollout_weights = "file"'
        )


@contextmanager
def _temporary(target: Path) -> Iterator[Path]:
    """A name beside ``target``, removed at the end unless it was renamed."""
    handle, name = tempfile.mkstemp(prefix=f"{target.name}.", suffix=".partial", dir=target.parent)
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
    finally:
        partial.unlink(missing_ok=True)


def _to_disk(path: Path) -> None:
    # A rename can reach the disk before the data does, and a power cut would then leave a file
    # with the right name, size and header, and zeros for weights.
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


def _remove_stale(target: Path) -> None:
    """Delete what a killed process left of this copy; a young one may still be growing."""
    for partial in target.parent.glob(f"{target.name}.*.partial"):
        if time.time() - partial.stat().st_mtime > _STALE_SECONDS:
            partial.unlink(missing_ok=True)
