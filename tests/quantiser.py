"""Models in every file type of llama.cpp's quantiser, for the tests that read them."""

from __future__ import annotations

import ctypes
from pathlib import Path

import llama_cpp
import numpy as np

from trainer.gguf.file import GgufFile
from trainer.llama.native import start_native

_NAMES = (
    "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 F16 BF16 Q1_0 Q2_0 MXFP4_MOE Q2_K Q2_K_S Q3_K_S Q3_K_M Q3_K_L Q4_K_S "
    "Q4_K_M Q5_K_S Q5_K_M Q6_K TQ1_0 TQ2_0 IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ2_M IQ3_XXS IQ3_XS "
    "IQ3_S IQ3_M IQ4_NL IQ4_XS"
)
# NVFP4 has a number as well, and the quantiser answers "invalid output file type 39" to it.
QUANTISED_FTYPES = {
    name: getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{name}") for name in _NAMES.split()
}


def quantised_copy(base: Path, ftype: int, target: Path, *, pure: bool = False) -> Path:
    """Write ``base`` to ``target`` as a file type of `QUANTISED_FTYPES`.

    With ``pure`` every matrix gets the type itself instead of llama.cpp's mixture for it. The types
    below three bits want to know which inputs matter: all are called equally important.
    """
    log = start_native()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = ftype
    params.nthread = 1
    params.allow_requantize = True
    params.pure = pure
    ones = {
        info.name.encode(): np.ones(info.count // info.shape[-2], np.float32)
        for info in GgufFile(base).tensors.values()
        if len(info.shape) > 1
    }
    importance = (llama_cpp.llama_model_imatrix_data * (len(ones) + 1))()
    for entry, (name, values) in zip(importance, ones.items(), strict=False):
        entry.name = name
        entry.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        entry.size = values.size
    params.imatrix = importance
    mark = log.mark()
    status = llama_cpp.llama_model_quantize(bytes(base), bytes(target), ctypes.byref(params))
    assert status == 0, log.quote(mark)
    return target
