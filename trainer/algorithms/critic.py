"""The critic: a linear estimate of the rewards that are still to come, from the decoder's states.

Notation: a batch has N answer tokens; ``features`` (N, width) are the decoder's normalised last
hidden states *before* each of them, so a token's value knows nothing of the token itself.
``returns`` (N,) are what the values are fitted to, in units of the reward.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from trainer.checkpoint.file import State
from trainer.errors import TrainingError

_STEADY = 1e-2
"""A feature that varies less than this part of the average one is scaled as if it varied so."""
_BIAS_RATE = 10.0
"""How many times faster b learns than a weight: it stands alone, and they are hundreds."""


class Critic(Protocol):
    """``shared`` tells whether the value loss is part of the policy's loss and trains the adapter;
    otherwise `fit` is all that changes the critic."""

    shared: ClassVar[bool]

    def values(self, features: Tensor) -> Tensor:
        """The values (N,) of the states ``features`` (N, width)."""
        ...

    def fit(self, features: Tensor, returns: Tensor) -> None:
        """Learn from a batch whose advantages were taken already."""
        ...

    def state(self) -> State:
        """All that it has learnt."""
        ...

    def load_state(self, state: State) -> None: ...


class ProbeCritic:
    """V = u · (w · (h − m) / s + b) on frozen features, zero at first, fitted by full-batch Adam.

    m and s are the first batch's means and deviations of each feature, s times √width, and u is the
    size (root mean square) of the first returns that are not all zero. They stay as they are, so V
    is linear in h all the same. A step of Adam moves every weight by the learning rate, whatever
    the loss: without s it would move V by that times the sum of a state's hundreds of numbers, and
    without u as far for rewards of a thousand as for rewards of one. Adam's moments last for the
    run.
    """

    shared: ClassVar[bool] = False

    def __init__(self, width: int, *, lr: float, epochs: int, device: torch.device) -> None:
        self.weight = torch.zeros(width, device=device, requires_grad=True)
        self.bias = torch.zeros((), device=device, requires_grad=True)
        self.epochs = epochs
        groups: list[dict[str, Any]] = [
            {"params": [self.weight]},
            {"params": [self.bias], "lr": lr * _BIAS_RATE},
        ]
        self._optimizer = torch.optim.Adam(groups, lr=lr)
        self._mean: Tensor | None = None
        self._scale: Tensor | None = None
        self._unit = 0.0

    def values(self, features: Tensor) -> Tensor:
        with torch.no_grad():
            return self._unit * (self._standardised(features) @ self.weight + self.bias)

    def fit(self, features: Tensor, returns: Tensor) -> None:
        """``epochs`` steps on 0.5 · mean ((V − R) / u)². Returns that are all zero teach nothing to
        a critic that says zero. Raises TrainingError when a weight is not finite any more."""
        x = self._standardised(features)
        self._unit = self._unit or float(returns.double().square().mean().sqrt())
        if self._unit == 0:
            return
        target = returns.to(x.device) / self._unit
        for _ in range(self.epochs):
            self._optimizer.zero_grad()
            loss = 0.5 * (x @ self.weight + self.bias - target).square().mean()
            torch.autograd.backward(loss)
            self._optimizer.step()
        if not (self.weight.isfinite().all() and self.bias.isfinite()):
            raise TrainingError(
                "the critic's weights are not finite any more. Lower ppo.critic.value_lr."
            )

    def state(self) -> State:
        return {
            "weight": self.weight.detach().cpu().clone(),
            "bias": self.bias.detach().cpu().clone(),
            "mean": None if self._mean is None else self._mean.cpu(),
            "scale": None if self._scale is None else self._scale.cpu(),
            "unit": self._unit,
            "optimizer": self._optimizer.state_dict(),
        }

    def load_state(self, state: State) -> None:
        _set(self.weight, state["weight"])
        _set(self.bias, state["bias"])
        device = self.weight.device
        self._mean, self._scale = (
            None if state[key] is None else state[key].to(device) for key in ("mean", "scale")
        )
        self._unit = state["unit"]
        self._optimizer.load_state_dict(state["optimizer"])

    def _standardised(self, features: Tensor) -> Tensor:
        x = features.float()
        if self._mean is None or self._scale is None:
            deviation = x.std(dim=0, correction=0)
            floor = _STEADY * float(deviation.mean()) or 1.0
            self._mean = x.mean(dim=0)
            self._scale = deviation.clamp(min=floor) * math.sqrt(x.shape[1])
        return (x - self._mean) / self._scale


class SharedCritic:
    """V = w · h + b, zero at first, on states that the adapter moves: the value loss flows through
    them. The optimizer of the adapter makes its steps."""

    shared: ClassVar[bool] = True

    def __init__(self, width: int, *, device: torch.device) -> None:
        self.weight = torch.zeros(width, device=device, requires_grad=True)
        self.bias = torch.zeros((), device=device, requires_grad=True)

    def parameters(self) -> Iterator[Tensor]:
        yield from (self.weight, self.bias)

    def values(self, features: Tensor) -> Tensor:
        return features.float() @ self.weight + self.bias

    def fit(self, features: Tensor, returns: Tensor) -> None:
        """Nothing: the passes over the batch fit it."""

    def state(self) -> State:
        return {
            "weight": self.weight.detach().cpu().clone(),
            "bias": self.bias.detach().cpu().clone(),
        }

    def load_state(self, state: State) -> None:
        _set(self.weight, state["weight"])
        _set(self.bias, state["bias"])


def _set(parameter: Tensor, value: Tensor) -> None:
    with torch.no_grad():
        parameter.copy_(value)
