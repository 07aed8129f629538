"""What a pass minimises: GRPO's and PPO's losses of the answers in it, and what both measure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from trainer.algorithms import losses
from trainer.algorithms.critic import Critic
from trainer.algorithms.episodes import Episode
from trainer.algorithms.groups import Group
from trainer.config.grpo import GrpoSection
from trainer.config.ppo import PpoSection
from trainer.config.training import TrainingSection
from trainer.model.learner import Learner, PassOutput

G_contra = TypeVar("G_contra", bound=Group, contravariant=True)


@dataclass(slots=True)
class PassStats:
    """Sums over the answer tokens of one pass over the batch, except ``loss``, which is summed over
    its steps.

    ``surrogate``, ``kl`` (toward the anchor of the penalty), ``drift`` (k3 of ``old``, which wrote
    the answers, toward the policy as it is now) and ``entropy`` are in nats; ``value_loss`` is in
    squares of rewards.
    """

    tokens: int = 0
    surrogate: float = 0.0
    loss: float = 0.0
    kl: float = 0.0
    drift: float = 0.0
    entropy: float = 0.0
    value_loss: float = 0.0
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
        self.entropy += float(entropy.detach().sum())
        self.clipped_low += int(surrogate.clipped_low.sum())
        self.clipped_high += int(surrogate.clipped_high.sum())
        self.ratio_max = max(self.ratio_max, float(losses.bounded(surrogate.log_ratio).exp().max()))


class Objective(Protocol[G_contra]):
    """The loss of one optimizer step: a sum over the passes that the step is cut into, divided by a
    number that does not depend on the cut."""

    def accumulate(self, learner: Learner, step: Sequence[G_contra], stats: PassStats) -> float:
        """Add the gradient of the loss of ``step``; return the loss. Its numbers go to
        ``stats``."""
        ...


@dataclass(frozen=True, slots=True)
class GrpoObjective:
    """Σ over tokens of (weight · surrogate + β · k3), divided by G · max_new_tokens.

    The divisor is the configured constant, so neither an answer's length nor how many answers count
    changes a token's weight (Dr. GRPO, arXiv 2503.20783, section 3.2).
    """

    section: GrpoSection
    training: TrainingSection
    kl_coefficient: float

    @property
    def divisor(self) -> float:
        return float(self.section.group_size * self.section.sampling.max_new_tokens)

    def accumulate(self, learner: Learner, step: Sequence[Group], stats: PassStats) -> float:
        total = 0.0
        for group in step:
            loss = partial(self, group, stats=stats)
            total += learner.accumulate(group.prompt.tokens, group.live_tokens, loss)
        return total

    def __call__(self, group: Group, out: PassOutput, stats: PassStats) -> Tensor:
        """The part of the loss that one pass over answers of ``group`` makes."""
        logprobs, entropy = out.scores
        assert group.old is not None
        old = _recorded_old([(group.old, i) for i in out.answers], out)
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
        sampler = group.sampler_logprobs(old.device)
        terms = _corrected(surrogate.terms, old, [sampler[i] for i in out.answers], self.training)
        kl = None
        if self.kl_coefficient > 0 and group.reference is not None:
            kl = losses.k3(logprobs, torch.cat([group.reference[i] for i in out.answers]))
            terms = terms + self.kl_coefficient * kl
        stats.add(surrogate, kl, logprobs, entropy, old)
        return terms.sum() / self.divisor


@dataclass(frozen=True, slots=True)
class PpoObjective:
    """Each answer's mean over its tokens of (weight · surrogate + β · k3 − c · entropy + v · value
    loss), averaged over the answers of the step.

    The surrogate is PPO's (Schulman et al., arXiv 1707.06347, eq. 7) with one range both ways. k3
    is part of the loss only with ``kl_anchor = "rollout"``, toward the policy that wrote the
    answers; the penalty of ``"reference"`` is in the rewards, and k3 toward the initial policy is
    only measured. The value loss is part of it where the critic shares the trained model.
    """

    section: PpoSection
    training: TrainingSection
    critic: Critic | None

    def accumulate(self, learner: Learner, step: Sequence[Episode], stats: PassStats) -> float:
        def loss(out: PassOutput) -> Tensor:
            return self([step[i] for i in out.answers], out, stats) / len(step)

        prompts = [e.prompt.tokens for e in step]
        return learner.accumulate_apart(prompts, [e.tokens for e in step], loss)

    def __call__(self, episodes: Sequence[Episode], out: PassOutput, stats: PassStats) -> Tensor:
        """The sum over the answers of one pass, which are ``episodes``."""
        logprobs, entropy = out.scores
        device = logprobs.device
        old = _recorded_old([(e.old, 0) for e in episodes if e.old is not None], out)
        clip = self.section.clip_range
        advantages = torch.cat([e.estimate.advantages for e in episodes]).to(device)
        surrogate = losses.clipped_surrogate(
            logprobs, old, advantages, out.lengths, low=clip, high=clip
        )
        sampler = [e.sampler_logprobs(device)[0] for e in episodes]
        terms = _corrected(surrogate.terms, old, sampler, self.training)
        kl = None
        if self.section.kl_coefficient > 0:
            if self.section.kl_anchor == "rollout":
                kl = losses.k3(logprobs, old)
                terms = terms + self.section.kl_coefficient * kl
            else:
                reference = [e.reference[0] for e in episodes if e.reference is not None]
                kl = losses.k3(logprobs.detach(), torch.cat(reference))
        if self.section.entropy_coefficient > 0:
            terms = terms - self.section.entropy_coefficient * entropy
        if self.critic is not None and self.critic.shared:
            terms = terms + self._value_terms(self.critic, episodes, out, stats)
        stats.add(surrogate, kl, logprobs, entropy, old)
        return losses.answer_means(terms, out.lengths).sum()

    def _value_terms(
        self, critic: Critic, episodes: Sequence[Episode], out: PassOutput, stats: PassStats
    ) -> Tensor:
        section = self.section.critic
        value_loss = losses.clipped_value_loss(
            critic.values(out.states),
            torch.cat([e.estimate.values for e in episodes]).to(out.states.device),
            torch.cat([e.estimate.returns for e in episodes]).to(out.states.device),
            clip=section.value_clip_range,
        )
        stats.value_loss += float(value_loss.detach().sum())
        return section.value_loss_coefficient * value_loss


def _recorded_old(places: Sequence[tuple[list[Tensor], int]], out: PassOutput) -> Tensor:
    """What generated the answers of a pass: scored before, or, where no step was made since, now;
    the latter is recorded. A place is the list that keeps it and the position there."""
    now = torch.split(out.scores.logprobs.detach(), out.lengths.tolist())
    for (kept, place), part in zip(places, now, strict=True):
        if not len(kept[place]):
            kept[place] = part
    return torch.cat([kept[place] for kept, place in places])


def _corrected(
    terms: Tensor, old: Tensor, sampler: Sequence[Tensor], training: TrainingSection
) -> Tensor:
    """The terms weighed for what the sampler computed differently, where that is asked for."""
    if training.importance_correction == "off":
        return terms
    weights = losses.importance_weights(old, torch.cat(list(sampler)), training.importance_cap)
    return terms * weights
