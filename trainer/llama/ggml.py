"""The few functions of ggml that reading a GGUF file, and writing one again, need, bound with
ctypes.

llama-cpp-python ships ggml but binds only llama.h. Reading metadata and turning quantised blocks
into floats with the same C routines that llama.cpp uses is exact by construction, and takes a
fraction of a second where a pure Python reader takes many.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import llama_cpp


class _TypeTraits(ctypes.Structure):
    _fields_ = (
        ("type_name", c_char_p),
        ("block_size", c_int64),
        ("block_size_interleave", c_int64),
        ("type_size", c_size_t),
        ("is_quantized", c_bool),
        ("to_float", c_void_p),
        ("from_float_ref", c_void_p),
    )


class _InitParams(ctypes.Structure):
    _fields_ = (("no_alloc", c_bool), ("ctx", c_void_p))


_TO_FLOAT = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_int64)

_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ggml_get_type_traits": (POINTER(_TypeTraits), (c_int,)),
    "gguf_init_from_file": (c_void_p, (c_char_p, _InitParams)),
    "gguf_free": (None, (c_void_p,)),
    "gguf_get_data_offset": (c_size_t, (c_void_p,)),
    "gguf_get_n_kv": (c_int64, (c_void_p,)),
    "gguf_find_key": (c_int64, (c_void_p, c_char_p)),
    "gguf_get_key": (c_char_p, (c_void_p, c_int64)),
    "gguf_get_kv_type": (c_int, (c_void_p, c_int64)),
    "gguf_get_arr_type": (c_int, (c_void_p, c_int64)),
    "gguf_get_arr_n": (c_size_t, (c_void_p, c_int64)),
    "gguf_get_arr_str": (c_char_p, (c_void_p, c_int64, c_size_t)),
    "gguf_get_arr_data": (c_void_p, (c_void_p, c_int64)),
    "gguf_get_val_data": (c_void_p, (c_void_p, c_int64)),
    "gguf_get_val_str": (c_char_p, (c_void_p, c_int64)),
    "gguf_get_n_tensors": (c_int64, (c_void_p,)),
    "gguf_get_tensor_offset": (c_size_t, (c_void_p, c_int64)),
    "gguf_get_tensor_name": (c_char_p, (c_void_p, c_int64)),
    "gguf_get_tensor_ne": (POINTER(c_int64 * 4), (c_void_p, c_int64)),
    "gguf_get_tensor_type": (c_int, (c_void_p, c_int64)),
    "gguf_get_tensor_size": (c_size_t, (c_void_p, c_int64)),
    "gguf_get_alignment": (c_size_t, (c_void_p,)),
    "gguf_set_val_str": (None, (c_void_p, c_char_p, c_char_p)),
    "gguf_set_val_u32": (None, (c_void_p, c_char_p, ctypes.c_uint32)),
    "gguf_remove_key": (c_int64, (c_void_p, c_char_p)),
    "gguf_set_tensor_type": (None, (c_void_p, c_char_p, c_int)),
    "gguf_write_to_file": (c_bool, (c_void_p, c_char_p, c_bool)),
}

_SCALARS: dict[int, type[ctypes._SimpleCData[Any]]] = {
    0: ctypes.c_uint8,
    1: ctypes.c_int8,
    2: ctypes.c_uint16,
    3: ctypes.c_int16,
    4: ctypes.c_uint32,
    5: ctypes.c_int32,
    6: c_float,
    7: c_bool,
    10: ctypes.c_uint64,
    11: ctypes.c_int64,
    12: ctypes.c_double,
}
_STRING, _ARRAY = 8, 9

Value = bool | int | float | str | list[int] | list[float] | list[bool]


@cache
def library() -> ctypes.CDLL:
    """libggml-base, as shipped beside llama.cpp, with the signatures declared."""
    folder = Path(llama_cpp.__file__).parent / "lib"
    names = ("libggml-base.so", "libggml-base.dylib", "ggml-base.dll")
    found = next((folder / name for name in names if (folder / name).exists()), None)
    if found is None:
        raise OSError(f"{folder}: the ggml library of llama-cpp-python is not there; reinstall it")
    handle = ctypes.CDLL(str(found))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(handle, name)
        function.restype, function.argtypes = result, list(arguments)
    return handle


def init_params() -> _InitParams:
    """Open a file for its header alone: no tensor data is allocated."""
    return _InitParams(True, None)


def type_name(kind: int) -> str:
    """llama.cpp's name of a tensor type, in capitals (``Q4_K``); ``type N`` when unknown."""
    if not 0 <= kind < llama_cpp.GGML_TYPE_COUNT:
        return f"type {kind}"
    name = library().ggml_get_type_traits(kind).contents.type_name
    return name.decode().upper() if name else f"type {kind}"


def can_dequantise(kind: int) -> bool:
    """Whether ggml can turn this type into floats (F32 counts: it is floats)."""
    if kind == llama_cpp.GGML_TYPE_F32:
        return True
    if not 0 <= kind < llama_cpp.GGML_TYPE_COUNT:
        return False
    return bool(library().ggml_get_type_traits(kind).contents.to_float)


def dequantise(kind: int, source: int, target: int, count: int) -> None:
    """Write ``count`` floats at address ``target`` from the blocks of ``kind`` at ``source``."""
    if kind == llama_cpp.GGML_TYPE_F32:
        ctypes.memmove(target, source, count * 4)
        return
    address = library().ggml_get_type_traits(kind).contents.to_float
    _TO_FLOAT(address)(source, target, count)


def scalar(context: int, index: int) -> Value:
    """The value of metadata entry ``index``; of a string array, only its length is of interest."""
    kind = library().gguf_get_kv_type(context, index)
    if kind == _STRING:
        return bytes(library().gguf_get_val_str(context, index)).decode("utf-8", "replace")
    if kind == _ARRAY:
        return _array(context, index)
    pointer = ctypes.cast(library().gguf_get_val_data(context, index), POINTER(_SCALARS[kind]))
    value: bool | int | float = pointer.contents.value
    return value


def strings(context: int, key: str) -> list[bytes]:
    """The strings of array ``key``, each up to its first NUL as llama.cpp reads it; empty when the
    file has no such array of strings."""
    lib = library()
    index = lib.gguf_find_key(context, key.encode())
    if index < 0 or lib.gguf_get_kv_type(context, index) != _ARRAY:
        return []
    if lib.gguf_get_arr_type(context, index) != _STRING:
        return []
    get = lib.gguf_get_arr_str
    return [get(context, index, i) for i in range(lib.gguf_get_arr_n(context, index))]


def _array(context: int, index: int) -> Value:
    kind = library().gguf_get_arr_type(context, index)
    count = library().gguf_get_arr_n(context, index)
    if kind not in _SCALARS:
        return f"[{count} strings]"
    address = library().gguf_get_arr_data(context, index)
    values: list[int] = list((_SCALARS[kind] * count).from_address(address)) if count else []
    return values
