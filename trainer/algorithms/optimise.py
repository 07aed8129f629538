"""The passes of one update: score, step, measure."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

import numpy as np
import torch

from trainer.algorithms.groups import Group
from trainer.algorithms.objectives import Objective, PassStats
from trainer.algorithms.schedules import learning_rate_factor
from trainer.config.grpo import GrpoSection
from trainer.config.ppo import PpoSection
from trainer.config.training import TrainingSection
from trainer.errors import TrainingError
from trainer.model.learner import Learner

CLIP_GUARD = 0.9

G = TypeVar("G", bound=Group)


def score_groups(
    learner: Learner,
    groups: Sequence[Group],
    *,
    unscored: Collection[int],
    with_reference: bool,
    on_progress: Callable[[int, int], None],
) -> None:
    """Log-probabilities under the policy that generated the answers, and the initial one.

    ``unscored`` are the groups (by index) that the first step is made on: their own training pass
    gives ``old``, so no pass is spent on it here.
    """
    for done, group in enumerate(groups, start=1):
        tokens = group.live_tokens
        if group.index in unscored:
            group.old = [torch.empty(0)] * len(tokens)
        else:
            group.old = learner.score(group.prompt.tokens, tokens, learner.adapter)
        if with_reference:
            group.reference = learner.score(group.prompt.tokens, tokens, learner.initial)
        on_progress(done, len(groups))


def shuffled(groups: Sequence[G], seed: int, update: int, epoch: int) -> list[G]:
    """The order of the groups in one pass, drawn anew for each."""
    order = np.random.default_rng((seed, update, epoch)).permutation(len(groups))
    return [groups[i] for i in order]


def learning_rates(
    section: GrpoSection | PpoSection, training: TrainingSection, update: int, epoch: int
) -> list[float]:
    """The learning rate of each step that a pass may have.

    The schedule counts the steps that the configuration plans, whether or not they are made, so
    that a run always ends where its schedule does.
    """
    per_pass = section.steps_per_pass
    total = section.updates * section.epochs * per_pass
    first = ((update - 1) * section.epochs + epoch) * per_pass
    return [
        training.lr
        * learning_rate_factor(first + i, total, training.warmup_steps, training.lr_scheduler)
        for i in range(per_pass)
    ]


def run_pass(
    learner: Learner,
    objective: Objective[G],
    steps: Sequence[Sequence[G]],
    rates: Sequence[float],
    on_step: Callable[[], None],
) -> PassStats:
    """One optimizer step on each set of groups, in the order given, at the learning rates given.

    Raises TrainingError when a loss or gradient is not finite, or when the clip removed the
    gradient of more than nine tokens in ten: the policy is then far from the one that wrote the
    answers, and further steps on them teach nothing.
    """
    stats = PassStats()
    for step, rate in zip(steps, rates, strict=True):
        stats.loss += objective.accumulate(learner, step, stats)
        stats.norms.append(learner.step(rate))
        on_step()
    if stats.clip_fraction > CLIP_GUARD:
        raise TrainingError(
            f"the trust-region guard stopped the run: {stats.clip_fraction:.0%} of the answer "
            f"tokens lay outside the clip range in one pass (the limit is {CLIP_GUARD:.0%}). The "
            f"steps are too large: lower training.lr or the passes over a batch (grpo_epochs, "
            f"ppo_epochs), or widen the clip range."
        )
    if not math.isfinite(stats.entropy):
        raise TrainingError("the policy's entropy is not finite; lower training.lr.")
    return stats
