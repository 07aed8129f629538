"""What a decoder does to the input of a linear map, with gradients written out.

None of these keeps anything for the backward pass but its raw input, which the residual stream or
the map before holds anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class Preparation(Protocol):
    """A function of the rows of ``raw`` and its gradient."""

    def forward(self, raw: Tensor) -> Tensor: ...

    def backward(self, raw: Tensor, upstream: Tensor) -> Tensor:
        """The gradient with respect to ``raw``; may overwrite ``upstream``."""
        ...


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The input as it is."""

    def forward(self, raw: Tensor) -> Tensor:
        return raw

    def backward(self, raw: Tensor, upstream: Tensor) -> Tensor:  # noqa: ARG002
        return upstream


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """x / √(mean(x²) + ε) · weight over the last dimension, ``weight`` frozen (Zhang and Sennrich,
    "Root Mean Square Layer Normalization", arXiv 1910.07467, eq. 4)."""

    weight: Tensor
    epsilon: float

    def forward(self, raw: Tensor) -> Tensor:
        return (raw * self._inverse(raw)).mul_(self.weight)

    def backward(self, raw: Tensor, upstream: Tensor) -> Tensor:
        inverse = self._inverse(raw)
        scaled = upstream.mul_(self.weight)
        slope = (scaled * raw).mean(-1, keepdim=True).mul_(inverse.pow(3))
        return scaled.mul_(inverse).addcmul_(raw, slope, value=-1)

    def _inverse(self, raw: Tensor) -> Tensor:
        return raw.square().mean(-1, keepdim=True).add_(self.epsilon).rsqrt_()


@dataclass(frozen=True, slots=True)
class SwiGlu:
    """silu(gate) · up of a (T, 2f) input whose halves are gate and up (Shazeer, "GLU Variants
    Improve Transformer", arXiv 2002.05202, section 2)."""

    def forward(self, raw: Tensor) -> Tensor:
        gate, up = raw.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    def backward(self, raw: Tensor, upstream: Tensor) -> Tensor:
        gate, up = raw.chunk(2, dim=-1)
        result = torch.empty_like(raw)
        d_gate, d_up = result.chunk(2, dim=-1)
        torch.mul(upstream, F.silu(gate), out=d_up)
        d_gate.copy_(torch.ops.aten.silu_backward(upstream.mul_(up), gate))
        return result


@dataclass(frozen=True, slots=True)
class GeGlu:
    """gelu(gate) · up of a (T, 2f) input whose halves are gate and up (Shazeer, as above), with
    gelu by its tanh formula (Hendrycks and Gimpel, arXiv 1606.08415, section 2)."""

    def forward(self, raw: Tensor) -> Tensor:
        gate, up = raw.chunk(2, dim=-1)
        return F.gelu(gate, approximate="tanh").mul_(up)

    def backward(self, raw: Tensor, upstream: Tensor) -> Tensor:
        gate, up = raw.chunk(2, dim=-1)
        result = torch.empty_like(raw)
        d_gate, d_up = result.chunk(2, dim=-1)
        torch.mul(upstream, F.gelu(gate, approximate="tanh"), out=d_up)
        slope = torch.ops.aten.gelu_backward(upstream.mul_(up), gate, approximate="tanh")
        d_gate.copy_(slope)
        return result
