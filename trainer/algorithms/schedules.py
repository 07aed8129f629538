"""How the learning rate and the KL coefficient move over a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Scheduler = Literal["constant", "linear", "cosine"]

_KL_FACTOR = 1.5
_KL_BOUND = 16.0

_ADAPTIVE_ERROR = 0.2
_ADAPTIVE_FACTOR = 2.0


def learning_rate_factor(step: int, total: int, warmup: int, scheduler: Scheduler) -> float:
    """What the learning rate is multiplied with at ``step``, counted from 0, of ``total`` steps.

    The first ``warmup`` steps rise in a line to 1. After them ``linear`` and ``cosine`` fall from 1
    so that they would reach 0 at step ``total``, the first step after the run.
    """
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if scheduler == "constant":
        return 1.0
    done = min(1.0, (step - warmup) / max(1, total - warmup))
    return 1.0 - done if scheduler == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))


@dataclass(frozen=True, slots=True)
class KlSchedule:
    """A KL coefficient that warms up, then follows a target.

    During ``warmup_updates`` it rises in a line to ``coefficient``. After that each update whose
    measured KL, in nats a token, lies above 1.5 times ``target`` multiplies it by 1.5, and one
    below ``target`` / 1.5 divides it by 1.5, within [1/16, 16] times ``coefficient`` (the rule of
    Schulman et al., arXiv 1707.06347, section 4, with a gentler factor).
    """

    coefficient: float
    warmup_updates: int
    target: float

    def next(self, current: float, update: int, measured: float | None) -> float:
        """The coefficient for the update after ``update`` (counted from 1), whose coefficient was
        ``current`` and whose KL was ``measured`` (None when nothing was trained)."""
        if update < self.warmup_updates:
            return self.first() * (update + 1)
        if measured is None or update == self.warmup_updates:
            return current
        if measured > self.target * _KL_FACTOR:
            current *= _KL_FACTOR
        elif measured < self.target / _KL_FACTOR:
            current /= _KL_FACTOR
        bounds = self.coefficient / _KL_BOUND, self.coefficient * _KL_BOUND
        return min(max(current, bounds[0]), bounds[1])

    def first(self) -> float:
        """The coefficient of the first update."""
        return self.coefficient / max(1, self.warmup_updates)


@dataclass(frozen=True, slots=True)
class AdaptiveKl:
    """A KL coefficient steered toward ``target``, the KL of a whole answer in nats.

    β ← β · (1 + clip(KL / target − 1, −0.2, 0.2) · n / horizon) after n answers (Ziegler et al.,
    arXiv 1909.08593, section 2.2). The factor is held within [1/2, 2]. It would leave that range
    only where ``horizon`` is shorter than 0.4 times the answers of an update; with one shorter
    than 0.2 times them, the formula alone would make β negative, and reward divergence.
    """

    target: float
    horizon: int

    def next(self, current: float, measured: float | None, answers: int) -> float:
        """The coefficient after an update of ``answers`` answers whose coefficient was ``current``.

        ``measured``: the mean over these answers of a KL estimate summed over the answer, in nats;
        log-ratios may make it negative, k3 does not. None or NaN (nothing was measured) leaves the
        coefficient.
        """
        if measured is None or math.isnan(measured):
            return current
        error = min(max(measured / self.target - 1.0, -_ADAPTIVE_ERROR), _ADAPTIVE_ERROR)
        factor = 1.0 + error * answers / self.horizon
        return current * min(max(factor, 1.0 / _ADAPTIVE_FACTOR), _ADAPTIVE_FACTOR)
