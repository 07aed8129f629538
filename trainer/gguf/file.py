"""Reading a GGUF file: its metadata, and its tensors as F32 arrays."""

from __future__ import annotations

import hashlib
import math
import os
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from trainer.errors import ModelError
from trainer.llama import ggml
from trainer.llama.native import start_native

T = TypeVar("T", int, float, str)
Floats = npt.NDArray[np.float32]
FETCHED_AS = {
    "SmolLM2-135M-Instruct.Q4_1.gguf": "smollm2-135m",
    "gemma-3-270m-q4_k_m.gguf": "gemma3-270m",
}
"""By file name: what `retrograd fetch` calls a model."""

_MAGIC = b"GGUF"
_WORDS: Mapping[type, str] = {int: "a whole number", float: "a finite number", str: "text"}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of the file. ``shape`` is in row-major order: (rows, columns) for a matrix that
    maps ``columns`` inputs to ``rows`` outputs."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int
    size: int

    @property
    def type_name(self) -> str:
        return ggml.type_name(self.kind)

    @property
    def count(self) -> int:
        return math.prod(self.shape)


class GgufFile:
    """A GGUF file whose header was read and whose every tensor lies within the file.

    ``tokens`` are the texts of the vocabulary, empty where the file has none.

    Raises ModelError for a missing, foreign, damaged or shortened file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._check_magic()
        context = self._open()
        try:
            self.metadata, self.tensors = _metadata(context), _tensors(context)
            self.tokens = ggml.strings(context, "tokenizer.ggml.tokens")
        finally:
            ggml.library().gguf_free(context)
        self._check_extent()

    def _check_magic(self) -> None:
        if not self.path.exists():
            raise ModelError(
                f"{self.path}: there is no such file. Check its path, or get "
                f"{_how_to_get(self.path)}."
            )
        if self.path.is_dir():
            raise ModelError(f"{self.path}: this is a folder, and a GGUF file is expected.")
        if not self.path.is_file():
            raise ModelError(f"{self.path}: not a regular file, and a GGUF file is expected.")
        try:
            with self.path.open("rb") as stream:
                head = stream.read(4)
        except OSError as error:
            raise ModelError(f"{self.path}: cannot be read ({error.strerror}).") from error
        if head != _MAGIC:
            raise ModelError(
                f"{self.path}: not a GGUF file (it starts with {head!r}, not b'GGUF'). Convert the "
                f"model with llama.cpp's converter, or download a .gguf file."
            )

    def _open(self) -> int:
        log = start_native()
        mark = log.mark()
        context: int | None = ggml.library().gguf_init_from_file(
            os.fsencode(self.path), ggml.init_params()
        )
        if not context:
            raise ModelError(
                f"{self.path}: the header is damaged or cut short; get the file again. "
                f"{log.quote(mark)}"
            )
        return context

    def _check_extent(self) -> None:
        size = self.path.stat().st_size
        missing = [t for t in self.tensors.values() if t.offset + t.size > size]
        if missing:
            needed = max(t.offset + t.size for t in missing)
            raise ModelError(
                f"{self.path}: the file is cut short: it has {size:,} bytes and its header "
                f"promises {needed:,} ({len(missing)} of {len(self.tensors)} tensors are not all "
                f"there, first {missing[0].name}). Get the file again."
            )

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """Metadata entry ``key`` as an ``int``, ``float`` or ``str``.

        Raises ModelError when it is something else, or is absent and has no default.
        """
        if key not in self.metadata:
            if default is None:
                raise ModelError(f"{self.path}: the metadata has no {key}; the file is incomplete.")
            return default
        value = self.metadata[key]
        if isinstance(value, list):
            raise ModelError(
                f"{self.path}: {key} has a value for each layer, which is not supported."
            )
        if not _fits(value, kind):
            raise ModelError(
                f"{self.path}: {key} = {value!r} in the metadata, where {_WORDS[kind]} is "
                f"expected. Get the file again, or convert the model again."
            )
        return kind(value)

    def text(self, key: str) -> str | None:
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None

    def read(
        self, name: str, out: npt.NDArray[np.float32] | None = None
    ) -> npt.NDArray[np.float32]:
        """The tensor as F32, in its row-major shape; written into ``out`` where one is given.

        Raises ModelError for a type that ggml cannot turn into floats.
        """
        info = self.tensors[name]
        self._check_readable(info)
        target = np.empty(info.shape, np.float32) if out is None else out
        if not (target.flags.c_contiguous and target.shape == info.shape):
            raise ValueError(f"{name}: out must be contiguous with shape {info.shape}")
        source = np.memmap(self.path, np.uint8, "r", info.offset, (info.size,))
        ggml.dequantise(info.kind, source.ctypes.data, target.ctypes.data, info.count)
        return target

    def read_rows(self, name: str, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Rows ``start`` to ``stop`` of a tensor as F32 (rows, columns), those of several experts
        being counted through. Raises ModelError as `read` does."""
        info = self.tensors[name]
        self._check_readable(info)
        columns = info.shape[-1]
        row = info.size // (info.count // columns)
        target = np.empty((stop - start, columns), np.float32)
        place = info.offset + start * row
        source = np.memmap(self.path, np.uint8, "r", place, ((stop - start) * row,))
        ggml.dequantise(info.kind, source.ctypes.data, target.ctypes.data, target.size)
        return target

    def _check_readable(self, info: TensorInfo) -> None:
        if not ggml.can_dequantise(info.kind):
            raise ModelError(
                f"{self.path}: tensor {info.name} has type {info.type_name}, which cannot be "
                f"turned into floats. Use another quantisation of this model."
            )

    def type_counts(self) -> Mapping[str, int]:
        """How many tensors the file has of each type."""
        return Counter(t.type_name for t in self.tensors.values())

    def digest(self) -> str:
        """SHA-256 of the whole file, in hexadecimal."""
        with self.path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()


def _fits(value: bool | int | float | str, kind: type) -> bool:
    """Whether ``value`` is of ``kind``, or is the same number in another type."""
    if kind is str or isinstance(value, str):
        return kind is str and isinstance(value, str)
    if isinstance(value, bool) or not math.isfinite(value):
        return False
    return kind is float or value == int(value)


def _metadata(context: int) -> dict[str, ggml.Value]:
    lib = ggml.library()
    return {
        lib.gguf_get_key(context, i).decode("utf-8", "replace"): ggml.scalar(context, i)
        for i in range(lib.gguf_get_n_kv(context))
    }


def _tensors(context: int) -> dict[str, TensorInfo]:
    lib = ggml.library()
    start = lib.gguf_get_data_offset(context)
    tensors = {}
    for i in range(lib.gguf_get_n_tensors(context)):
        name = lib.gguf_get_tensor_name(context, i).decode("utf-8", "replace")
        extents = list(lib.gguf_get_tensor_ne(context, i).contents)
        while len(extents) > 1 and extents[-1] == 1:
            extents.pop()
        tensors[name] = TensorInfo(
            name,
            tuple(reversed(extents)),
            lib.gguf_get_tensor_type(context, i),
            start + lib.gguf_get_tensor_offset(context, i),
            lib.gguf_get_tensor_size(context, i),
        )
    return tensors


def _how_to_get(path: Path) -> str:
    """The command that brings the file, where it is one that has a name."""
    name = FETCHED_AS.get(path.name)
    if name is None:
        return "a model with `retrograd fetch`"
    return f"it with `retrograd fetch {name} --to {shlex.quote(str(path.parent))}`"
