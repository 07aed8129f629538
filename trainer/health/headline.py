"""The number that says whether a run of an algorithm learns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Headline:
    """``name`` is the metric, ``held_out`` its twin of an evaluation, ``word`` what a sentence
    calls it, ``title`` what stands above its curve. ``tokens`` is what an update is measured in."""

    name: str
    held_out: str
    word: str
    title: str
    lower_is_better: bool
    tokens: str

    def is_better(self, now: float, before: float) -> bool:
        return now < before if self.lower_is_better else now > before


_REWARD = Headline(
    "reward/mean",
    "eval/mean_reward",
    "reward",
    "Reward, mean of the update",
    lower_is_better=False,
    tokens="tokens sampled",
)
_LOSS = Headline(
    "sft/loss",
    "eval/loss",
    "loss",
    "Loss, mean over the tokens of the update",
    lower_is_better=True,
    tokens="tokens learnt",
)


def headline_of(algorithm: str) -> Headline:
    """Of ``grpo`` and ``ppo`` the mean reward, of ``sft`` the loss."""
    return _LOSS if algorithm == "sft" else _REWARD
