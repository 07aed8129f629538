"""The passes of one GRPO update: score, step, measure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from trainer.algorithms import losses
from trainer.algorithms.groups import Group
from trainer.config.grpo import GrpoSection
from trainer.config.training import TrainingSection
from trainer.errors import TrainingError
from trainer.model.learner import Learner, PassOutput

CLIP_GUARD = 0.9


@dataclass(slots=True)
class PassStats:
    """Sums over the answer tokens of one pass over the batch.

    ``surrogate``, ``kl`` (toward the anchor of the penalty), ``drift`` (k3 of ``old``, which wrote
    the answers, toward the policy as it is now) and ``entropy`` are in nats.
    """

    tokens: int = 0
    surrogate: float = 0.0
    loss: float = 0.0
    kl: float = 0.0
    drift: float = 0.0
    entropy: float = 0.0
    clipped_low: int = 0
    clipped_high: int = 0
    ratio_max: float = 0.0
    norms: list[float] = field(default_factory=list)

    @property
    def clip_fraction(self) -> float:
        return (self.clipped_low + self.clipped_high) / self.tokens

    def add(
        self,
        surrogate: losses.Surrogate,
        kl: Tensor | None,
        scores: Tensor,
        entropy: Tensor,
        old: Tensor,
    ) -> None:
        self.tokens += len(scores)
        self.surrogate += float(surrogate.terms.detach().sum())
        self.kl += float(kl.detach().sum()) if kl is not None else 0.0
        self.drift += float(losses.k3(old, scores.detach()).sum())
        self.entropy += float(entropy.sum())
        self.clipped_low += int(surrogate.clipped_low.sum())
        self.clipped_high += int(surrogate.clipped_high.sum())
        self.ratio_max = max(self.ratio_max, float(losses.bounded(surrogate.log_ratio).exp().max()))


@dataclass(frozen=True, slots=True)
class GrpoObjective:
    """The loss of one group, as a function of one pass over some of its answers.

    Σ over tokens of (weight · surrogate + β · k3) / (G · max_new_tokens): the divisor is the
    configured constant, so neither an answer's length nor how many answers count changes a
    token's weight (Dr. GRPO, arXiv 2503.20783, section 3.2), and how the group is cut into passes
    does not matter.
    """

    section: GrpoSection
    training: TrainingSection
    kl_coefficient: float

    @property
    def divisor(self) -> float:
        return float(self.section.group_size * self.section.sampling.max_new_tokens)

    def __call__(self, group: Group, out: PassOutput, stats: PassStats) -> Tensor:
        logprobs, entropy = out.scores
        old = self._old(group, out)
        picked = [group.members[i] for i in out.answers]
        advantages = group.advantages[picked].to(logprobs.device).repeat_interleave(out.lengths)
        surrogate = losses.clipped_surrogate(
            logprobs,
            old,
            advantages,
            out.lengths,
            low=self.section.clip_range_low,
            high=self.section.clip_range_high,
            level=self.section.importance_sampling_level,
        )
        terms = surrogate.terms
        if self.training.importance_correction == "token":
            every = group.sampler_logprobs(old.device)
            sampler = torch.cat([every[i] for i in out.answers])
            terms = terms * losses.importance_weights(old, sampler, self.training.importance_cap)
        kl = None
        if self.kl_coefficient > 0 and group.reference is not None:
            kl = losses.k3(logprobs, torch.cat([group.reference[i] for i in out.answers]))
            terms = terms + self.kl_coefficient * kl
        stats.add(surrogate, kl, logprobs, entropy, old)
        return terms.sum() / self.divisor

    def _old(self, group: Group, out: PassOutput) -> Tensor:
        """What generated the answers: scored before, or, where no step was made since, now."""
        assert group.old is not None
        for place, part in zip(
            out.answers,
            torch.split(out.scores.logprobs.detach(), out.lengths.tolist()),
            strict=True,
        ):
            if not len(group.old[place]):
                group.old[place] = part
        return torch.cat([group.old[i] for i in out.answers])


def score_groups(
    learner: Learner,
    groups: Sequence[Group],
    *,
    first: Group,
    with_reference: bool,
    on_progress: Callable[[int, int], None],
) -> None:
    """Log-probabilities under the policy that generated the answers, and the initial one.

    ``first`` is the group that the first step is made on: its own training pass gives ``old``,
    so no pass is spent on it here. The initial policy is the base without an adapter.
    """
    for done, group in enumerate(groups, start=1):
        tokens = group.live_tokens
        if group is first:
            group.old = [torch.empty(0)] * len(tokens)
        else:
            group.old = learner.score(group.prompt.tokens, tokens, learner.adapter)
        if with_reference:
            group.reference = learner.score(group.prompt.tokens, tokens, None)
        on_progress(done, len(groups))


def shuffled(groups: Sequence[Group], seed: int, update: int, epoch: int) -> list[Group]:
    """The order of the steps of one pass, drawn anew for each."""
    order = np.random.default_rng((seed, update, epoch)).permutation(len(groups))
    return [groups[i] for i in order]


def run_pass(
    learner: Learner,
    objective: GrpoObjective,
    groups: Sequence[Group],
    rates: Sequence[float],
    on_step: Callable[[], None],
) -> PassStats:
    """One optimizer step for each group, in the order given, at the learning rates given.

    Raises TrainingError when a loss or gradient is not finite, or when the clip removed the
    gradient of more than nine tokens in ten: the policy is then far from the one that wrote the
    answers, and further steps on them teach nothing.
    """
    stats = PassStats()
    for group, rate in zip(groups, rates, strict=True):

        def loss(out: PassOutput, group: Group = group) -> Tensor:
            return objective(group, out, stats)

        stats.loss += learner.accumulate(group.prompt.tokens, group.live_tokens, loss)
        stats.norms.append(learner.step(rate))
        on_step()
    if stats.clip_fraction > CLIP_GUARD:
        raise TrainingError(
            f"the trust-region guard stopped the run: {stats.clip_fraction:.0%} of the answer "
            f"tokens lay outside the clip range in one pass (the limit is {CLIP_GUARD:.0%}). The "
            f"steps are too large: lower training.lr or grpo_epochs, or widen the clip range."
        )
    if not math.isfinite(stats.entropy):
        raise TrainingError("the policy's entropy is not finite; lower training.lr.")
    return stats
