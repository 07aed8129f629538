"""The trained part of the model: low-rank factors by tensor name."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from trainer.gguf.architecture import Architecture
from trainer.gguf.tensors import layer_shapes
from trainer.model.lora import Factors


class Adapter:
    """Factors A (rank, in) and B (out, rank), F32, of each target tensor; scale is alpha / rank.
    A tensor of several experts has one such pair for each: (experts, rank, in) and so on.

    B starts at zero, so a new adapter changes nothing; A is uniform in ±1/√in, as in the LoRA
    authors' code. The same seed gives the same factors on every device.
    """

    def __init__(
        self,
        architecture: Architecture,
        targets: Sequence[str],
        *,
        rank: int,
        alpha: float,
        seed: int,
        device: torch.device,
    ) -> None:
        self.rank = rank
        self.alpha = alpha
        self.architecture = architecture.name
        self.device = device
        generator = torch.Generator().manual_seed(seed)
        shapes = layer_shapes(architecture)
        self.factors: dict[str, Factors] = {}
        for name in targets:
            *experts, rows, columns = shapes[name.split(".")[2]]
            A = torch.empty(*experts, rank, columns).uniform_(
                -1 / math.sqrt(columns), 1 / math.sqrt(columns), generator=generator
            )
            self.factors[name] = (
                A.to(device).requires_grad_(),
                torch.zeros(*experts, rows, rank, device=device, requires_grad=True),
            )

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def parameters(self) -> Iterator[Tensor]:
        for pair in self.factors.values():
            yield from pair

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        for name, (A, B) in self.factors.items():
            yield f"{name}.lora_a", A
            yield f"{name}.lora_b", B

    @property
    def size(self) -> int:
        """The number of trained parameters."""
        return sum(p.numel() for p in self.parameters())

    def random(self, size: float) -> Adapter:
        """An adapter of the same shape whose B is drawn from a normal of deviation ``size``."""
        other = copy.copy(self)
        generator = torch.Generator().manual_seed(0)
        other.factors = {
            name: (
                A.detach().clone(),
                (torch.randn(B.shape, generator=generator) * size).to(self.device),
            )
            for name, (A, B) in self.factors.items()
        }
        return other

    def frozen(self) -> Adapter:
        """A copy of it as it is now, which nothing trains."""
        other = copy.copy(self)
        other.factors = {
            name: (A.detach().clone(), B.detach().clone()) for name, (A, B) in self.factors.items()
        }
        return other

    def state(self) -> dict[str, Tensor]:
        """A copy of every factor, on the CPU."""
        return {name: p.detach().cpu().clone() for name, p in self.named_parameters()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Set every factor from ``state``; names and shapes must be this adapter's own."""
        own = dict(self.named_parameters())
        if own.keys() != state.keys():
            raise ValueError(f"the names differ: {sorted(own.keys() ^ state.keys())[:4]}")
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(state[name])
