"""What a merge will write, and whether it can: seen before anything is computed."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainer.errors import ConfigError, ModelError
from trainer.gguf.families import FAMILIES
from trainer.gguf.file import GgufFile
from trainer.gguf.guard import check_metadata, check_vocabulary
from trainer.gguf.rewrite import Rewriting
from trainer.llama.quantiser import FILE_TYPES, Fallback, QuantiserJob, quantise
from trainer.merge.factors import Factors, open_factors
from trainer.merge.origin import origin
from trainer.rollout.copies import copy_bytes

SAME: Final = "same"
"""The type that leaves each tensor the type that it has in the base."""
DEFAULT_TYPE: Final = "f16"
_VEHICLE = "q8_0"
_MARGIN_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Plan:
    """A merge that was looked at. ``rewriting`` makes the whole model with the adapted tensors in
    F32; from that the quantiser makes the result, of about ``size`` bytes. ``fallbacks`` are the
    tensors that get another type than asked for."""

    factors: Factors
    rewriting: Rewriting
    type: str
    file_type: int
    tensor_types: Mapping[str, int]
    file_type_told: int | None
    size: int
    fallbacks: tuple[Fallback, ...]

    @property
    def disk_bytes(self) -> int:
        """What the merge takes of the disk while it is at work."""
        return self.rewriting.size + self.size

    def job(self, source: Path, target: Path, threads: int) -> QuantiserJob:
        """What makes ``target`` of ``source``, the whole model, and removes both where this process
        dies meanwhile."""
        return QuantiserJob(
            source,
            target,
            self.file_type,
            threads,
            self.tensor_types,
            self.file_type_told,
            temporary=(source, target),
        )


def make_plan(base: Path, adapter: Path, kind: str = DEFAULT_TYPE, *, where: str = "type") -> Plan:
    """Read both files and ask the quantiser what it would make of them. ``where`` is what names the
    type, for messages.

    Raises ModelError or ConfigError, with what does not fit and the cure.
    """
    check_type(kind, where)
    file = read_base(base)
    factors = open_factors(adapter, file)
    rewriting = Rewriting(file, origin(file, factors.file), factors.targets, factors.merged_rows)
    if kind == SAME:
        told = _file_type(file)
        types = {n: t.kind for n, t in file.tensors.items() if len(t.shape) > 1}
        number = FILE_TYPES[_VEHICLE]
    else:
        told, types, number = None, {}, FILE_TYPES[kind]
    # The base has the shapes that the whole model will have, so its answer is that one's.
    trial = quantise(QuantiserJob(base, None, number, 1, types, told))
    if trial.needs_importance:
        raise ConfigError(
            f"{where} {kind}: needs to know which inputs matter (an importance matrix), which "
            f"retrograd does not measure. Merge to f16 and give that to llama.cpp's llama-quantize "
            f"with --imatrix, or choose another type."
        )
    header = min(info.offset for info in file.tensors.values())
    size = header + trial.tensor_bytes
    return Plan(factors, rewriting, kind, number, types, told, size, trial.fallbacks)


def check_type(kind: str, where: str = "type") -> None:
    """Raises ConfigError for a type that is none, with those that are."""
    if kind != SAME and kind not in FILE_TYPES:
        raise ConfigError(
            f"{where} {kind}: there is no such type. Use {SAME}, or one of llama.cpp's: "
            f"{', '.join(sorted(FILE_TYPES))}."
        )


def read_base(path: Path) -> GgufFile:
    """Read a model that an adapter can be merged into. Raises ModelError."""
    file = GgufFile(path)
    kind = file.text("general.type") or "model"
    if kind != "model":
        raise ModelError(
            f"{path}: this is an {kind}, and the base model is expected. The base comes first, "
            f"then the adapter."
            if kind == "adapter"
            else f"{path}: this is a file of type {kind!r}, and the base model is expected."
        )
    if file.get("split.count", int, 0) > 1:
        raise ModelError(
            f"{path}: this is one part of a model in {file.metadata['split.count']} files. Join "
            f"them first: llama-gguf-split --merge FIRST_PART.gguf WHOLE.gguf"
        )
    if not file.tensors:
        raise ModelError(f"{path}: holds no tensors.")
    name = file.get("general.architecture", str)
    if name in FAMILIES:
        check_metadata(file, name)
        check_vocabulary(file)
    return file


def merged_bytes(base: GgufFile, targets: Collection[str]) -> int:
    """What merging an adapter of ``targets`` to F16 takes of the disk, without reading one."""
    whole = Rewriting(base, {}, targets, lambda _: iter(()))
    return whole.size + copy_bytes(base, "f16")


def check_disk(needed: int, folder: Path) -> None:
    """Raises ConfigError where ``folder``, or the nearest above it that exists, has less room."""
    place = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    free = shutil.disk_usage(place).free
    if needed + _MARGIN_BYTES > free:
        raise ConfigError(
            f"{folder}: merging needs {needed / 2**20:,.0f} MiB there for a while, and "
            f"{free / 2**20:,.0f} MiB are free. Make room, or write to another disk."
        )


def _file_type(base: GgufFile) -> int:
    """The number that the base states, or that of what most of its matrices are."""
    if isinstance(told := base.metadata.get("general.file_type"), int):
        return told
    kinds = Counter(t.type_name.lower() for t in base.tensors.values() if len(t.shape) > 1)
    most = kinds.most_common(1)[0][0] if kinds else "f32"
    return FILE_TYPES.get(most, FILE_TYPES.get(f"{most}_s", FILE_TYPES["f32"]))
