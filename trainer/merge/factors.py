"""An adapter's factors over any base that has its tensors, and the sum of the two."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer.errors import ModelError
from trainer.gguf.adapter import read_alpha, read_pair
from trainer.gguf.file import Floats, GgufFile
from trainer.gguf.fitting import check_fits

_BLOCK_FLOATS = 8 << 20
_ROUNDING = 2.0**-22


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

    def check_sum(self, whole: GgufFile, name: str) -> None:
        """See that ``whole``, read again, holds one tensor's sum in F32, row by row.

        Each row of what was added is multiplied with a random vector x and compared with
        alpha / rank · B (A x). The two may differ by the rounding of the sum, and that is known:
        a row that was left out, scaled or turned round is seen where its change is well above the
        rounding of single precision, 2⁻²² of what the row holds.
        Raises ModelError.
        """
        *experts, rows, columns = self.base.tensors[name].shape
        a, b = (factor.astype(np.float64) for factor in self.pair(name))
        rank = a.shape[-2]
        b *= self.alpha / rank if self.alpha else 1.0
        x = np.random.default_rng(columns).standard_normal(columns)
        wanted = (b @ (a @ x)[..., None]).reshape(-1)
        rounding = (np.abs(b) @ (np.abs(a) @ np.abs(x))[..., None]).reshape(-1) * (rank + 2)
        step = max(1, _BLOCK_FLOATS // columns)
        for first in range(0, rows * math.prod(experts), step):
            last = min(first + step, wanted.size)
            before = self.base.read_rows(name, first, last).astype(np.float64)
            after = whole.read_rows(name, first, last)
            most = np.abs(after) @ np.abs(x) + rounding[first:last]
            excess = np.abs((after - before) @ x - wanted[first:last]) - most * _ROUNDING
            if not (excess <= 0).all():
                row = first + int(np.argmax(excess))
                raise ModelError(
                    f"{self.base.path}: the sum of {name} and what {self.file.path} adds to it was "
                    f"not written as it should be: row {row} is another. The disk fails, or "
                    f"retrograd does; please report it."
                )

    def pair(self, name: str) -> tuple[Floats, Floats]:
        return read_pair(self.file, name, self.base.tensors[name].shape)


def open_factors(path: Path, base: GgufFile) -> Factors:
    """Read an adapter, and see that all of it fits ``base``. Raises ModelError, which names what
    does not."""
    file = GgufFile(path)
    return Factors(base, file, read_alpha(file), check_fits(file, base))
