"""From the rewards of a group to advantages.

Notation: a group of G answers to one prompt has rewards R (G,); ``live`` (G,) is True for the
answers that count. Rewards are F64, as the program gave them; advantages are F32.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Baseline = Literal["mean", "leave_one_out"]


def overlong_penalty(
    lengths: Tensor, *, max_new_tokens: int, buffer_tokens: int, max_penalty: float
) -> Tensor:
    """What to add to the reward of answers of ``lengths`` (G,) tokens; zero or negative.

    Zero up to max_new_tokens − buffer, then falling in a line to −max_penalty at max_new_tokens
    (Yu et al., "DAPO", arXiv 2503.14476, eq. 13, with the penalty scaled).
    """
    over = lengths.double() - (max_new_tokens - buffer_tokens)
    return -max_penalty * (over / buffer_tokens).clamp(0.0, 1.0)


def group_advantages(rewards: Tensor, live: Tensor, baseline: Baseline) -> Tensor:
    """Advantages (G,): A_i = R_i − mean of the live rewards, zero for answers that do not count.

    ``leave_one_out`` subtracts the mean of the *other* live answers, which is the same direction
    n / (n − 1) times as long. Never divided by the standard deviation (Liu et al., "Understanding
    R1-Zero-Like Training" (Dr. GRPO), arXiv 2503.20783, section 3.2). All zero when the group
    carries no signal (see `has_signal`).
    """
    if not has_signal(rewards, live):
        return torch.zeros(len(rewards))
    count = live.sum()
    centred = (rewards - rewards[live].mean()).float()
    if baseline == "leave_one_out":
        centred = centred * (count / (count - 1))
    return torch.where(live, centred, torch.zeros_like(centred))


def has_signal(rewards: Tensor, live: Tensor) -> bool:
    """Whether at least two live answers exist and their rewards (G,) are not all equal."""
    counted = rewards[live]
    return bool(len(counted) >= 2 and counted.max() > counted.min())
