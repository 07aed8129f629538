"""A frozen linear map with low-rank adapters on some of its outputs.

For a frozen W (out, in) and factors A (r, in), B (out, r) the map is

    y = x Wᵀ + s · (x Aᵀ) Bᵀ,    s = alpha / r

(Hu et al., "LoRA", arXiv 2106.09685, section 4.1). Matrices that read the same input (q, k and v;
gate and up) are kept as one W whose row ranges may each have factors of their own. What the
decoder does to the input first, a norm or a gate, belongs to the map: its result is needed again
for the gradient of A, and computing it twice is cheaper than keeping it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.model.inputs import Preparation

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

    prepare: Preparation
    weight: Tensor
    bias: Tensor | None
    parts: tuple[Part, ...]

    def __call__(self, raw: Tensor, factors: Mapping[str, Factors] | None, scale: float) -> Tensor:
        """(T, raw) → (T, out), with the adapters of those parts that ``factors`` names."""
        adapted = [p for p in self.parts if factors and p.name in factors]
        flat = [t for p in adapted for t in factors[p.name]] if factors else []
        rows = [(p.start, p.stop) for p in adapted]
        result: Tensor = _LoraLinear.apply(raw, self, scale, rows, *flat)  # type: ignore[no-untyped-call]
        return result


class _LoraLinear(torch.autograd.Function):
    """The map above with its gradients written out.

    What autograd would build from the formula keeps the prepared input and makes two more
    temporaries of the output's size, and runs the products of q, k and v one by one.
    """

    @staticmethod
    def forward(
        ctx: Any,
        raw: Tensor,
        linear: JoinedLinear,
        scale: float,
        rows: Sequence[Rows],
        *factors: Tensor,
    ) -> Tensor:
        x = linear.prepare.forward(raw)
        y = F.linear(x, linear.weight, linear.bias)
        ctx.linear, ctx.scale, ctx.rows = linear, scale, rows
        if not rows:
            ctx.save_for_backward(raw)
            return y
        stacked = torch.cat(factors[0::2])
        down = x @ stacked.T
        first = 0
        for (start, stop), B in zip(rows, factors[1::2], strict=True):
            rank = B.shape[1]
            y[:, start:stop].addmm_(down[:, first : first + rank], B.T, alpha=scale)
            first += rank
        ctx.save_for_backward(raw, down, stacked, *factors[1::2])
        return y

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Any, ...]:
        raw, *saved = ctx.saved_tensors
        (dy,) = upstream
        linear: JoinedLinear = ctx.linear
        wanted = ctx.needs_input_grad[0]
        dx = dy @ linear.weight if wanted else None
        gradients: list[Tensor] = []
        if saved:
            down, stacked, *ups = saved
            d_down, d_ups = _factor_gradients(dy, down, ups, ctx.rows, ctx.scale)
            if dx is not None:
                dx.addmm_(d_down, stacked)
            d_stacked = d_down.T @ linear.prepare.forward(raw)
            d_downs = torch.split(d_stacked, [B.shape[1] for B in ups])
            gradients = [g for pair in zip(d_downs, d_ups, strict=True) for g in pair]
        d_raw = linear.prepare.backward(raw, dx) if dx is not None else None
        return (d_raw, None, None, None, *gradients)


def _factor_gradients(
    dy: Tensor, down: Tensor, ups: Sequence[Tensor], rows: Sequence[Rows], scale: float
) -> tuple[Tensor, list[Tensor]]:
    """The gradients of x Aᵀ, (T, Σ r), and of each B (out, r)."""
    d_down = torch.empty_like(down)
    d_ups = []
    first = 0
    for (start, stop), B in zip(rows, ups, strict=True):
        part, columns = dy[:, start:stop], slice(first, first + B.shape[1])
        torch.mul(part @ B, scale, out=d_down[:, columns])
        d_ups.append((part.T @ down[:, columns]).mul_(scale))
        first += B.shape[1]
    return d_down, d_ups
