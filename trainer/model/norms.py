"""Norms that stand between the maps of a decoder: of queries and keys, and after a map.

Those before a map are part of it (`trainer.model.inputs`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class HeadNorm(Protocol):
    """A norm of the queries and keys of a pass."""

    def __call__(self, x: Tensor) -> Tensor:
        """(T, heads + kv_heads, d), queries first, to the same shape."""
        ...


@dataclass(frozen=True, slots=True)
class OutputNorm:
    """x / √(mean(x²) + ε) · weight over the last dimension of (T, width); ``weight`` (width,) is
    frozen (Zhang and Sennrich, arXiv 1910.07467, eq. 4)."""

    weight: Tensor
    epsilon: float

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.epsilon)


@dataclass(frozen=True, slots=True)
class EachHead:
    """The same norm over each head by itself. ``weight`` (heads + kv_heads, d) has the queries'
    weights in the rows of query heads, and the keys' in the others."""

    weight: Tensor
    epsilon: float

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], None, self.epsilon) * self.weight


@dataclass(frozen=True, slots=True)
class AllHeads:
    """The same norm over all query heads together, and over all key heads together; the weights are
    (heads · d,) and (kv_heads · d,)."""

    query: Tensor
    key: Tensor
    epsilon: float

    def __call__(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        parts = torch.split(flat, [len(self.query), len(self.key)], dim=1)
        normed = [
            F.rms_norm(part, weight.shape, weight, self.epsilon)
            for part, weight in zip(parts, (self.query, self.key), strict=True)
        ]
        return torch.cat(normed, dim=1).view_as(x)
