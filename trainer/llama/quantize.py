"""llama.cpp's quantiser, used the other way round: it writes a model again with wider weights."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple

import llama_cpp

from trainer.errors import ModelError
from trainer.llama.native import start_native

WideKind = Literal["f16", "f32"]


class WideType(NamedTuple):
    """llama.cpp's numbers for a file of wide weights and for its matrices; bytes of a weight."""

    file_type: int
    tensor_type: int
    weight_bytes: int


WIDE_TYPES: Final[Mapping[WideKind, WideType]] = {
    "f16": WideType(llama_cpp.LLAMA_FTYPE_MOSTLY_F16, llama_cpp.GGML_TYPE_F16, 2),
    "f32": WideType(llama_cpp.LLAMA_FTYPE_ALL_F32, llama_cpp.GGML_TYPE_F32, 4),
}

_BUFFER_BYTES = 64 << 20


def widen(base: Path, target: Path, kind: WideKind, *, threads: int) -> None:
    """Write ``base`` to ``target`` with matrices of ``kind``; vectors keep their type.

    Raises:
        ModelError: the quantiser failed; ``target`` may then hold a part of a file.
    """
    log = start_native()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = WIDE_TYPES[kind].file_type
    params.nthread = threads
    params.allow_requantize = True
    params.max_buf_size = _BUFFER_BYTES
    mark = log.mark()
    status = llama_cpp.llama_model_quantize(bytes(base), bytes(target), ctypes.byref(params))
    if status != 0:
        raise ModelError(f"{base}: llama.cpp cannot copy this model; {log.quote(mark)}")
