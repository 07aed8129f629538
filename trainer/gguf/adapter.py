"""Adapters in llama.cpp's format."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import gguf
import numpy as np

from trainer.errors import ModelError
from trainer.gguf.architecture import Architecture
from trainer.gguf.file import Floats, GgufFile
from trainer.gguf.partial import written_whole
from trainer.gguf.tensors import layer_shapes, weight_name

AdapterDtype = Literal["f16", "f32"]
ENDINGS = (".lora_a", ".lora_b")


@dataclass(frozen=True, slots=True)
class StoredAdapter:
    """An adapter as a file holds it. ``factors`` are named ``<tensor>.lora_a`` (rank, in) and
    ``<tensor>.lora_b`` (out, rank); ``targets`` are the tensors, in the base's order; ``dtype`` is
    the type that loses nothing of them."""

    rank: int
    alpha: float
    dtype: AdapterDtype
    targets: tuple[str, ...]
    factors: Mapping[str, Floats]


def read_adapter(path: Path, base: Architecture) -> StoredAdapter:
    """Read a LoRA file of llama.cpp's, whoever wrote it, that is made for ``base``.

    A file without an alpha, or with one of 0, is read as llama.cpp reads it: with a scale of 1.
    Raises ModelError, which names the tensor or the entry that does not fit.
    """
    file = GgufFile(path)
    check_kind(file, base.name)
    shapes = {
        weight_name(layer, part): shape
        for layer in range(base.layers)
        for part, shape in layer_shapes(base).items()
    }
    for name in file.tensors:
        if not name.endswith(ENDINGS) or name[: -len(ENDINGS[0])] not in shapes:
            raise ModelError(
                f"{path}: {name} is not a factor of a matrix that is trained in this base "
                f"(blk.0.attn_q.weight.lora_a and its like are), so the adapter cannot be gone on "
                f"with."
            )
    targets = tuple(name for name in shapes if {name + e for e in ENDINGS} & file.tensors.keys())
    if not targets:
        raise ModelError(f"{path}: the adapter holds no factors.")
    factors: dict[str, Floats] = {}
    for name in targets:
        a, b = read_pair(file, name, shapes[name])
        factors |= {name + ending: value for ending, value in zip(ENDINGS, (a, b), strict=True)}
    rank = _common_rank(file, factors)
    whole = all(file.tensors[name].type_name.lower() == "f16" for name in factors)
    alpha = read_alpha(file)
    return StoredAdapter(
        rank=rank,
        alpha=alpha or float(rank),
        dtype="f16" if whole else "f32",
        targets=targets,
        factors=factors,
    )


def read_alpha(file: GgufFile) -> float:
    """The alpha of an adapter, 0 where llama.cpp takes a scale of 1. Raises ModelError."""
    alpha = file.get("adapter.lora.alpha", float, 0.0)
    if alpha < 0:
        raise ModelError(f"{file.path}: adapter.lora.alpha is {alpha}, and has to be above 0.")
    return alpha


def check_kind(file: GgufFile, architecture: str) -> None:
    """Refuse what is no LoRA, or one of another architecture. Raises ModelError."""
    kind = file.text("general.type")
    if kind != "adapter":
        raise ModelError(
            f"{file.path}: this is {f'a {kind}' if kind else 'a model'}, and an adapter is "
            f"expected."
        )
    if (form := file.get("adapter.type", str, "lora")) != "lora":
        raise ModelError(f"{file.path}: this is an adapter of type {form!r}, and not a LoRA.")
    if (name := file.get("general.architecture", str)) != architecture:
        raise ModelError(
            f"{file.path}: the adapter was made for the architecture {name!r}, and the base is "
            f"{architecture!r}."
        )
    if invoked := next((key for key in file.metadata if key.startswith("adapter.alora.")), None):
        raise ModelError(
            f"{file.path}: the adapter works only after certain words ({invoked}), which can be "
            f"neither trained nor merged."
        )


def read_pair(file: GgufFile, name: str, shape: tuple[int, ...]) -> tuple[Floats, Floats]:
    """A (rank, in) and B (out, rank) of one tensor, whose (out, in) are the last of ``shape``, with
    the experts before that where it has several. Raises ModelError where they do not fit."""
    *experts, rows, columns = shape
    found: list[Floats] = []
    for ending, outer in zip(ENDINGS, (columns, rows), strict=True):
        key = name + ending
        if key not in file.tensors:
            raise ModelError(f"{file.path}: {key} is missing, the other half of its factors.")
        value = file.read(key)
        whole = outer * math.prod(experts)
        rank = value.size // whole
        # A rank of 1 is stored without its extent of 1.
        wanted = (*experts, *((rank, columns) if ending == ENDINGS[0] else (rows, rank)))
        if value.ndim > len(shape) or (
            value.shape != wanted and not (rank == 1 and value.size == whole)
        ):
            raise ModelError(
                f"{file.path}: {key} has the shape {value.shape}, and the base's {name} has "
                f"{_extent(shape)}: the adapter was made for another model."
            )
        if not np.isfinite(value).all():
            raise ModelError(f"{file.path}: {key} holds numbers that are not finite.")
        found.append(value.reshape(wanted))
    a, b = found
    return a, b


def _extent(shape: tuple[int, ...]) -> str:
    *experts, rows, columns = shape
    return f"{rows} rows and {columns} columns" + "".join(f" of {n} experts" for n in experts)


def _common_rank(file: GgufFile, factors: Mapping[str, Floats]) -> int:
    ranks = {
        name: int(value.shape[-2 if name.endswith(ENDINGS[0]) else -1])
        for name, value in factors.items()
    }
    first, rank = next(iter(ranks.items()))
    for name, other in ranks.items():
        if other != rank:
            raise ModelError(
                f"{file.path}: {first} has the rank {rank} and {name} the rank {other}; an adapter "
                f"of several ranks can be talked to, served and merged, but not trained further, "
                f"nor have its losses on texts compared."
            )
    return rank


def write_adapter(
    path: Path,
    factors: Mapping[str, Floats],
    *,
    architecture: str,
    alpha: float,
    dtype: AdapterDtype,
    name: str = "retrograd adapter",
) -> None:
    """Write factors, named ``<tensor>.lora_a`` (rank, in) and ``<tensor>.lora_b`` (out, rank), with
    the experts before that where a tensor has several.

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
    factors: Mapping[str, Floats],
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
