"""How far apart two models' log-probabilities are, and what of that is rounding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainer.rollout.engine import RolloutEngine
from trainer.rollout.weights import WeightsKind

LogProbs = npt.NDArray[np.float64]

GAP_LIMITS: Final[dict[WeightsKind, float]] = {"f32": 0.01, "f16": 0.05, "file": 0.5}
"""By what llama.cpp computes with: at most so many nats between two ways to compute one model."""
_CHANGE_FLOORS: Final[dict[WeightsKind, float]] = {"f32": 0.005, "f16": 0.02, "file": 0.2}
_SHARE: Final = 0.5


def log_softmax(logits: npt.NDArray[Any]) -> LogProbs:
    """(positions, vocabulary), of any offset, to log-probabilities."""
    moved = logits.astype(np.float64)
    moved -= moved.max(-1, keepdims=True)
    moved -= np.log(np.exp(moved).sum(-1, keepdims=True))
    return moved


def logprobs(engine: RolloutEngine, tokens: Sequence[int]) -> LogProbs:
    """What the engine's model makes of ``tokens``, (positions, vocabulary)."""
    return log_softmax(engine.logits(tokens))


def mean_nats(difference: LogProbs, weights: LogProbs) -> float:
    """Averaged over the positions. Each token counts by its probability, exp(``weights``), or those
    that nobody draws would drown the rest."""
    return float((np.exp(weights) * np.abs(difference)).sum(-1).mean())


def change_limit(change: float, kind: WeightsKind) -> float:
    """By how much two sides may differ in a change of so many nats: half of it, or a floor that
    covers the rounding of a small one. What is not applied at all is off by all of it."""
    return max(_CHANGE_FLOORS[kind], _SHARE * change)


def merge_limit(change: float, kind: WeightsKind) -> float:
    """By how much a model may be off that has a change of so many nats merged in."""
    return min(GAP_LIMITS[kind], change_limit(change, kind))
