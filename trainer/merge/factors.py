"""An adapter's factors over any base that has its tensors, and the sum of the two."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer.errors import ModelError
from trainer.gguf.adapter import ENDINGS, check_kind, read_alpha, read_pair
from trainer.gguf.file import Floats, GgufFile

_BLOCK_FLOATS = 8 << 20


@dataclass(frozen=True, slots=True)
class Factors:
    """``targets`` are the tensors that ``file`` adapts, in the base's order. An ``alpha`` of 0
    stands for a scale of 1, as in llama.cpp."""

    base: GgufFile
    file: GgufFile
    alpha: float
    targets: tuple[str, ...]

    def merged_rows(self, name: str) -> Iterator[Floats]:
        """W + alpha / rank · B A of one tensor in F32, a block of (rows, columns) after the other,
        those of several experts one after the other.

        Raises ModelError where a number is not finite.
        """
        *experts, rows, columns = self.base.tensors[name].shape
        a, b = self.pair(name)
        rank = a.shape[-2]
        scale = np.float32(self.alpha / rank if self.alpha else 1.0)
        step = max(1, _BLOCK_FLOATS // columns)
        for expert in range(int(np.prod(experts, dtype=np.int64))):
            A, B = a.reshape(-1, rank, columns)[expert], b.reshape(-1, rows, rank)[expert]
            for first in range(0, rows, step):
                last = min(first + step, rows)
                place = expert * rows
                block = self.base.read_rows(name, place + first, place + last)
                with np.errstate(over="ignore", invalid="ignore"):  # said below
                    block += scale * (B[first:last] @ A)
                if not np.isfinite(block).all():
                    raise ModelError(
                        f"{self.base.path}: with {self.file.path} the tensor {name} holds numbers "
                        f"that are not finite, so the two cannot be merged."
                    )
                yield block

    def pair(self, name: str) -> tuple[Floats, Floats]:
        return read_pair(self.file, name, self.base.tensors[name].shape)


def open_factors(path: Path, base: GgufFile) -> Factors:
    """Read an adapter, and see that all of it fits ``base``: every factor has its other half, its
    tensor, and the shape for it. Its ranks may differ from tensor to tensor.

    Raises ModelError, which names what does not fit.
    """
    file = GgufFile(path)
    check_kind(file, base.get("general.architecture", str))
    named = {}
    for name in file.tensors:
        target = next((name[: -len(e)] for e in ENDINGS if name.endswith(e)), None)
        if target is None:
            raise ModelError(
                f"{path}: the tensor {name} is no factor of a LoRA, and leaving it out would "
                f"change the model. It cannot be merged."
            )
        named[target] = name
    for target, name in named.items():
        _check_target(path, base, target, name)
    factors = Factors(base, file, read_alpha(file), tuple(n for n in base.tensors if n in named))
    if not factors.targets:
        raise ModelError(f"{path}: the adapter holds no factors.")
    for name in factors.targets:
        factors.pair(name)
    return factors


def _check_target(path: Path, base: GgufFile, target: str, name: str) -> None:
    if target == "token_embd.weight":
        raise ModelError(
            f"{path}: {name} adapts the embedding, which is not merged: leave the embedding out "
            f"of the adapter's targets."
        )
    if target == "output.weight" and target not in base.tensors:
        raise ModelError(
            f"{path}: {name} adapts the output matrix, and in {base.path} that is the embedding, "
            f"to which llama.cpp applies no such adapter: it was made for another model."
        )
    if target not in base.tensors:
        raise ModelError(
            f"{path}: {name} adapts {target}, and {base.path} has no such tensor: the adapter was "
            f"made for another model."
        )
    if len(base.tensors[target].shape) not in (2, 3):
        raise ModelError(f"{path}: {name} adapts {target}, which is no matrix in {base.path}.")
