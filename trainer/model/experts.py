"""A feed-forward network that is a choice of several for each row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.model.lora import Factors, JoinedLinear
from trainer.model.norms import OutputNorm

_LEAST_SUM = 2.0**-14
"""llama.cpp divides by no smaller sum of weights, the smallest normal number of F16."""


@dataclass(frozen=True, slots=True)
class ExpertNetworks:
    """The sum of the ``used`` experts that the router likes best, each by its share of the
    probability that these have together (Shazeer et al., "Outrageously Large Neural Networks",
    arXiv 1701.06538, section 2; here the softmax comes before the choice).

    ``router`` is (experts, width) and frozen. The parts of expert e's maps are named as the file's
    tensors with ``[e]`` after them.
    """

    norm: OutputNorm
    router: Tensor
    used: int
    gate_up: tuple[JoinedLinear, ...]
    down: tuple[JoinedLinear, ...]
    tensors: tuple[str, ...]

    def __call__(self, x: Tensor, factors: Mapping[str, Factors] | None, scale: float) -> Tensor:
        """(T, width) → (T, width)."""
        rows = self.norm(x)
        probabilities = (rows @ self.router.T).softmax(dim=-1)
        weights, chosen = probabilities.topk(self.used, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True).clamp_min(_LEAST_SUM)
        own = self._by_expert(factors) if factors else None
        out = torch.zeros_like(x)
        for expert in range(len(self.router)):
            at, place = (chosen == expert).nonzero(as_tuple=True)
            if len(at) == 0:
                continue
            inner = self.gate_up[expert](rows[at], own, scale)
            answer = self.down[expert](inner, own, scale) * weights[at, place, None]
            out = out.index_add(0, at, answer)
        return out

    def _by_expert(self, factors: Mapping[str, Factors]) -> dict[str, Factors]:
        """The factors of each expert. Taken apart once: the gradients of slices taken one by one
        would each be a tensor of zeros for all experts."""
        own: dict[str, Factors] = {}
        for name in self.tensors:
            if name in factors:
                A, B = factors[name]
                pairs = zip(A.unbind(), B.unbind(), strict=True)
                own |= {f"{name}[{expert}]": pair for expert, pair in enumerate(pairs)}
        return own
