"""Writing a GGUF file again with some metadata changed and some tensors computed anew.

ggml's own routines write the header, so that metadata is carried over as it is, whatever it holds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import llama_cpp
import numpy as np

from trainer.errors import ModelError
from trainer.gguf.file import Floats, GgufFile, TensorInfo
from trainer.llama import ggml

_BLOCK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Rewriting:
    """What becomes of ``base``. ``metadata`` are texts and whole numbers in place of the base's
    (None: the entry goes). The tensors of ``computed`` become F32, with the rows that ``rows``
    gives, block by block; all others stay as they are, byte for byte."""

    base: GgufFile
    metadata: Mapping[str, str | int | None]
    computed: Collection[str]
    rows: Callable[[str], Iterator[Floats]]

    @property
    def size(self) -> int:
        """Bytes of the result, to within its header."""
        header = min(info.offset for info in self.base.tensors.values())
        return header + sum(
            4 * info.count if name in self.computed else info.size
            for name, info in self.base.tensors.items()
        )

    def write(self, target: Path, progress: Callable[[int, int], None] = lambda *_: None) -> None:
        """Write the file, a few rows in memory at a time. ``progress`` hears how many tensors are
        written, of how many. Raises OSError; ModelError for a tensor that cannot be read."""
        offsets = _write_header(self, target)
        tensors = self.base.tensors
        with self.base.path.open("rb") as source, target.open("r+b") as out:
            for number, (name, info) in enumerate(tensors.items(), start=1):
                out.seek(offsets[name])
                if name in self.computed:
                    for block in self.rows(name):
                        out.write(np.ascontiguousarray(block, np.float32).data)
                else:
                    _copy(source, out, info)
                progress(number, len(tensors))
            out.truncate(offsets[""])


def _write_header(what: Rewriting, target: Path) -> dict[str, int]:
    """Write all but the data; where each tensor's begins, and under the empty name where the file
    ends."""
    lib = ggml.library()
    context: int | None = lib.gguf_init_from_file(os.fsencode(what.base.path), ggml.init_params())
    if not context:
        raise ModelError(f"{what.base.path}: is not there any more, or has changed; start again.")
    try:
        for key, value in what.metadata.items():
            _set(context, key, value)
        for name in what.computed:
            lib.gguf_set_tensor_type(context, name.encode(), llama_cpp.GGML_TYPE_F32)
        if not lib.gguf_write_to_file(context, os.fsencode(target), True):
            raise OSError(f"{target}: the header could not be written")
        start, alignment = target.stat().st_size, lib.gguf_get_alignment(context)
        count = lib.gguf_get_n_tensors(context)
        offsets = {
            lib.gguf_get_tensor_name(context, i).decode("utf-8", "replace"): start
            + lib.gguf_get_tensor_offset(context, i)
            for i in range(count)
        }
        end = start + lib.gguf_get_tensor_offset(context, count - 1)
        end += lib.gguf_get_tensor_size(context, count - 1)
        return {**offsets, "": -(-end // alignment) * alignment}
    finally:
        lib.gguf_free(context)


def _set(context: int, key: str, value: str | int | None) -> None:
    lib, name = ggml.library(), key.encode()
    if value is None:
        lib.gguf_remove_key(context, name)
    elif isinstance(value, str):
        lib.gguf_set_val_str(context, name, value.encode("utf-8", "replace"))
    else:
        lib.gguf_set_val_u32(context, name, value)


def _copy(source: BinaryIO, out: BinaryIO, info: TensorInfo) -> None:
    source.seek(info.offset)
    left = info.size
    while left:
        block = source.read(min(left, _BLOCK_BYTES))
        if not block:
            raise OSError(f"{source.name}: became shorter while it was read")
        out.write(block)
        left -= len(block)
