"""What the sampler returns: answers, as ids that travel to the loss untouched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How to draw: ``temperature`` divides the logits, and 0 takes the likeliest token; ``top_p``
    keeps the smallest set of tokens whose probability reaches it; at most ``max_new_tokens`` are
    drawn, the end token included."""

    temperature: float
    top_p: float
    max_new_tokens: int

    @classmethod
    def greedy(cls, max_new_tokens: int) -> Self:
        """The likeliest token each time."""
        return cls(temperature=0.0, top_p=1.0, max_new_tokens=max_new_tokens)


@dataclass(frozen=True, slots=True)
class Answer:
    """One sampled answer.

    ``tokens`` (n,) int32 are the drawn ids, the end token included. ``logprobs`` (n,) float32 are
    the sampler's own log-probabilities in nats, at the sampling temperature and over the whole
    vocabulary (before any top-p truncation). ``finished`` is true when the last token ends the
    generation; otherwise the answer was cut at ``max_new_tokens``. ``text`` is for rewards, judges
    and people, never for training.
    """

    tokens: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    finished: bool
    text: str

    @property
    def truncated(self) -> bool:
        return not self.finished
