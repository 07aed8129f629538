"""A frozen linear map with low-rank adapters on some of its outputs.

For a frozen W (out, in) and factors A (r, in), B (out, r) the map is

    y = x Wᵀ + s · (x Aᵀ) Bᵀ,    s = alpha / r

(Hu et al., "LoRA", arXiv 2106.09685, section 4.1). Matrices that read the same input (q, k and v;
gate and up) are kept as one W whose row ranges may each have factors of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Factors = tuple[Tensor, Tensor]
Rows = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Part:
    """The rows [start, stop) of a joined weight, which are tensor ``name`` of the file."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class JoinedLinear:
    """One or more of the file's matrices over the same input, stacked by rows."""

    weight: Tensor
    bias: Tensor | None
    parts: tuple[Part, ...]

    def __call__(self, x: Tensor, factors: Mapping[str, Factors] | None, scale: float) -> Tensor:
        """(T, in) → (T, out), with the adapters of those parts that ``factors`` names."""
        adapted = [p for p in self.parts if factors and p.name in factors]
        if not adapted or factors is None:
            return F.linear(x, self.weight, self.bias)
        flat = [t for p in adapted for t in factors[p.name]]
        rows = [(p.start, p.stop) for p in adapted]
        result: Tensor = _LoraLinear.apply(x, self.weight, self.bias, scale, rows, *flat)  # type: ignore[no-untyped-call]
        return result


class _LoraLinear(torch.autograd.Function):
    """The map above with its gradients written out.

    What autograd would build from the formula makes two more temporaries of the output's size and
    runs the three products of q, k and v one by one.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        scale: float,
        rows: Sequence[Rows],
        *factors: Tensor,
    ) -> Tensor:
        stacked = torch.cat(factors[0::2]) if len(rows) > 1 else factors[0]
        down = x @ stacked.T
        y = F.linear(x, weight, bias)
        first = 0
        for (start, stop), B in zip(rows, factors[1::2], strict=True):
            rank = B.shape[1]
            y[:, start:stop].addmm_(down[:, first : first + rank], B.T, alpha=scale)
            first += rank
        ctx.save_for_backward(x, weight, down, stacked, *factors[1::2])
        ctx.scale, ctx.rows = scale, rows
        return y

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Any, ...]:
        x, weight, down, stacked, *ups = ctx.saved_tensors
        (dy,) = upstream
        d_down = torch.empty_like(down)
        d_ups = []
        first = 0
        for (start, stop), B in zip(ctx.rows, ups, strict=True):
            part, columns = dy[:, start:stop], slice(first, first + B.shape[1])
            torch.mul(part @ B, ctx.scale, out=d_down[:, columns])
            d_ups.append((part.T @ down[:, columns]).mul_(ctx.scale))
            first += B.shape[1]
        dx = None
        if ctx.needs_input_grad[0]:
            dx = (dy @ weight).addmm_(d_down, stacked)
        d_stacked = d_down.T @ x
        d_downs = d_stacked.split([B.shape[1] for B in ups])
        gradients = [g for pair in zip(d_downs, d_ups, strict=True) for g in pair]
        return (dx, None, None, None, None, *gradients)
