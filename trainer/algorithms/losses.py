"""Policy losses and divergences as pure functions.

Notation: a pass holds K answers with N tokens in all, one after another; ``lengths`` (K,) cuts
the N tokens into answers. ``logprobs`` (N,) are under the policy being trained, ``old`` (N,) under
the one that generated the answers, ``reference`` (N,) under the initial one; all in nats, F32.
ρ = exp(logprobs − old). Log-ratios are bounded to ±20 before exp, so that one absurd token gives a
large finite number and not an infinity.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

ImportanceLevel = Literal["token", "sequence"]
LOG_RATIO_BOUND = 20.0


class Surrogate(NamedTuple):
    """``terms`` (N,): the loss of each token. ``log_ratio`` (N,), detached, as it entered the clip.
    ``clipped_low`` and ``clipped_high`` (N,): True where the clip removes the gradient."""

    terms: Tensor
    log_ratio: Tensor
    clipped_low: Tensor
    clipped_high: Tensor


def bounded(log_ratio: Tensor) -> Tensor:
    """The log-ratio (N,) within ±20 nats, where exp and its gradient are finite in F32."""
    return log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def clipped_surrogate(
    logprobs: Tensor,
    old: Tensor,
    advantages: Tensor,
    lengths: Tensor,
    *,
    low: float,
    high: float,
    level: ImportanceLevel = "token",
) -> Surrogate:
    """−min(ρA, clip(ρ, 1 − low, 1 + high) A) for each token; advantages (N,).

    ``token``: PPO's ratio (Schulman et al., arXiv 1707.06347, eq. 7) with the two-sided range of
    DAPO (arXiv 2503.14476, eq. 10). ``sequence``: every token of an answer has the ratio
    exp(mean over its tokens of logprobs − old) (Zheng et al., GSPO, arXiv 2507.18071, eq. 7).
    """
    log_ratio = logprobs - old
    if level == "sequence":
        log_ratio = answer_means(log_ratio, lengths).repeat_interleave(lengths)
    ratio = bounded(log_ratio).exp()
    plain = ratio * advantages
    limited = ratio.clamp(1.0 - low, 1.0 + high) * advantages
    return Surrogate(
        terms=-torch.minimum(plain, limited),
        log_ratio=log_ratio.detach(),
        clipped_low=((advantages < 0) & (ratio < 1.0 - low)).detach(),
        clipped_high=((advantages > 0) & (ratio > 1.0 + high)).detach(),
    )


def k3(logprobs: Tensor, toward: Tensor) -> Tensor:
    """exp(δ) − 1 − δ with δ = toward − logprobs, for each token (N,).

    A never negative, unbiased estimate of KL(policy ‖ toward) on samples of the policy (Schulman,
    "Approximating KL Divergence", 2020). expm1 keeps the digits that exp(δ) − 1 loses near zero.
    """
    delta = bounded(toward - logprobs)
    return torch.expm1(delta) - delta


def clipped_value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, *, clip: float
) -> Tensor:
    """0.5 · max((V − R)², (V_clip − R)²) for each token, V_clip = V held within V_old ± clip.

    values (N,) carry the gradient; old_values (N,) are those that the advantages were taken with,
    returns (N,) what the critic should have said. The larger loss counts, so a value that has
    moved further than ``clip`` toward its return gets no gradient, and one that has moved away
    gets all of it. (Not in the PPO paper: it is the value loss of its authors' code, "PPO2" in
    OpenAI Baselines, and of TRL's PPOTrainer.)
    """
    moved = old_values + (values - old_values).clamp(-clip, clip)
    return 0.5 * torch.maximum((values - returns).square(), (moved - returns).square())


def importance_weights(old: Tensor, sampler: Tensor, cap: float) -> Tensor:
    """min(exp(old − sampler), cap) for each token (N,), detached: what corrects for the sampler's
    probabilities differing from the trainer's (truncated importance sampling)."""
    return bounded(old - sampler).exp().clamp(max=cap).detach()


def answer_means(values: Tensor, lengths: Tensor) -> Tensor:
    """The mean of each answer's tokens: (N,), (K,) → (K,)."""
    return answer_sums(values, lengths) / lengths


def answer_sums(values: Tensor, lengths: Tensor) -> Tensor:
    """The sum of each answer's tokens: (N,), (K,) → (K,)."""
    answer = torch.arange(len(lengths), device=values.device).repeat_interleave(lengths)
    return values.new_zeros(len(lengths)).index_add(0, answer, values)
