"""Per-token rewards, generalised advantage estimation and what is measured about the critic.

Notation: a batch holds K answers with N tokens in all, one after another; ``lengths`` (K,), each
at least 1, cuts the N tokens into answers. ``values`` (N,) are V(state before the token): what the
critic expects of the answer before it is known which token comes. Rewards of answers are F64, as
the program gave them, on the CPU; everything per token is F32, on any one device. Nothing here
carries a gradient. Sums over tokens are taken in F64, so that numbers that are equal stay equal
however long an answer is, and on the CPU: Apple's GPU has no F64, and a walk along the tokens of an
answer is many small steps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

WHITEN_EPSILON = 1e-8


class Estimates(NamedTuple):
    """``advantages`` (N,) and ``returns`` (N,) = advantages + values, both detached."""

    advantages: Tensor
    returns: Tensor


def token_rewards(rewards: Tensor, lengths: Tensor, penalty: Tensor | None) -> Tensor:
    """Rewards (N,) of tokens: an answer's own reward (K,) at its last token, the penalty at all.

    ``penalty`` (N,) is subtracted at every answer token, the last included: β · (old − reference)
    keeps the policy near the initial one (Ziegler et al., arXiv 1909.08593, eq. 2; per token as
    in Ouyang et al., "InstructGPT", arXiv 2203.02155, eq. 2).
    """
    last = lengths.cumsum(0) - 1
    spread = torch.zeros(int(lengths.sum()), device=lengths.device)
    spread[last] = rewards.float().to(lengths.device)
    return spread if penalty is None else spread - penalty.detach()


def generalised_advantages(
    rewards: Tensor, values: Tensor, lengths: Tensor, *, gamma: float, gae_lambda: float
) -> Estimates:
    """Advantages and returns from rewards (N,) and values (N,) of tokens.

    δ_t = r_t + γ V_{t+1} − V_t and A_t = δ_t + γλ A_{t+1}, where V and A beyond an answer's last
    token are zero: the answer ends there, whatever comes next in the batch (Schulman et al.,
    arXiv 1506.02438, eq. 16).
    """
    wide, lengths = _wide(values), lengths.cpu()
    longest = int(lengths.max())
    held = torch.arange(longest) < lengths[:, None]
    # A column more than the longest answer, and zeros after each answer's end: so the last token
    # bootstraps from zero without a mask.
    state = wide.new_zeros(len(lengths), longest + 1)
    state[:, :-1][held] = wide
    advantages = torch.zeros_like(state)
    advantages[:, :-1][held] = _wide(rewards)
    advantages[:, :-1] += gamma * state[:, 1:] - state[:, :-1]
    for t in range(longest - 2, -1, -1):
        advantages[:, t] += gamma * gae_lambda * advantages[:, t + 1]
    flat = advantages[:, :-1][held]
    return Estimates(_like(flat, values), _like(flat + wide, values))


def whiten(values: Tensor) -> Tensor:
    """values (N,) with their mean taken off and their variance made 1.

    (x − mean) / sqrt(var + 1e-8) with the unbiased variance, over all N tokens alike, as the
    field's PPO does. A single token, or tokens that are all equal, give zeros: they say nothing.
    """
    if len(values) < 2 or bool(values.max() == values.min()):
        return torch.zeros_like(values)
    wide = _wide(values)
    centred = wide - wide.mean()
    return _like(centred * (wide.var() + WHITEN_EPSILON).rsqrt(), values)


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """1 − Var(returns − values) / Var(returns): 1 is a perfect critic, 0 one no better than a
    constant, and below 0 it misleads.

    NaN where the returns are all equal, or fewer than two: there is nothing to explain.
    """
    if len(returns) < 2 or bool(returns.max() == returns.min()):
        return float("nan")
    wide = _wide(returns)
    return float(1.0 - (wide - _wide(values)).var() / wide.var())


def _wide(values: Tensor) -> Tensor:
    return values.detach().cpu().double()


def _like(values: Tensor, model: Tensor) -> Tensor:
    # The type first: a device may not know F64.
    return values.to(model.dtype).to(model.device)
