"""Adapters in llama.cpp's format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import gguf
import numpy as np
import numpy.typing as npt

from trainer.gguf.partial import written_whole

AdapterDtype = Literal["f16", "f32"]


def write_adapter(
    path: Path,
    factors: Mapping[str, npt.NDArray[np.float32]],
    *,
    architecture: str,
    alpha: float,
    dtype: AdapterDtype,
    name: str = "retrograd adapter",
) -> None:
    """Write factors, named ``<tensor>.lora_a`` (rank, in) and ``<tensor>.lora_b`` (out, rank).

    llama.cpp applies alpha / rank itself, so alpha is written once and never multiplied in; it
    reads a missing or zero alpha as a scale of 1, so zero is refused. The file appears whole or
    not at all. Raises ValueError for such an alpha and OSError when the file cannot be written.
    """
    if not alpha > 0:
        raise ValueError(f"alpha is {alpha}; llama.cpp would read it as a scale of 1")
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as partial:
        _write(partial, factors, architecture, alpha, dtype, name)


def _write(
    path: Path,
    factors: Mapping[str, npt.NDArray[np.float32]],
    architecture: str,
    alpha: float,
    dtype: AdapterDtype,
    name: str,
) -> None:
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_name(name)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, alpha)
    stored = np.float16 if dtype == "f16" else np.float32
    for key, value in factors.items():
        # A number too large for F16 becomes infinite, and the caller's check of the file says so.
        with np.errstate(over="ignore"):
            writer.add_tensor(key, np.ascontiguousarray(value, dtype=stored))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
