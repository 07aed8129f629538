"""PPO's answers on their way from the sampler to the loss: one to a prompt, valued by token."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trainer.algorithms.collect import Sampled
from trainer.algorithms.gae import generalised_advantages, token_rewards, whiten
from trainer.algorithms.groups import Group, program_rewards
from trainer.algorithms.stopwatch import Stopwatch
from trainer.chat.messages import Prompt
from trainer.config.ppo import CriticSection
from trainer.model.adapter import Adapter
from trainer.model.learner import Learner, Scored
from trainer.model.packing import Ids
from trainer.reward.program import RewardReply
from trainer.rollout.answers import Answer

_ROUNDING = 1e-9
"""Rewards (F64) that differ by no more than this part of the largest are equal but for rounding."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """For each token (n,) of an answer: the critic's value of the state before it, the return that
    the critic is fitted to, and the whitened advantage that the policy is trained with."""

    values: Tensor
    returns: Tensor
    advantages: Tensor


@dataclass(slots=True)
class Episode(Group):
    """A group of one answer. Its record shows the mean of the answer's token advantages.

    ``features`` (n, width) are the decoder's states before each token, where a critic reads them.
    """

    signal: bool = False
    features: Tensor | None = None
    estimate: Estimate = field(init=False)

    @property
    def trainable(self) -> bool:
        return self.signal

    @property
    def tokens(self) -> Ids:
        return self.answers[0].tokens


def form_episodes(sampled: Sequence[Sampled], watch: Stopwatch) -> list[Episode]:  # noqa: ARG001
    """What a collector makes of PPO's answers."""
    return [form_episode(s.slot, s.prompt, s.answers, s.replies) for s in sampled]


def form_episode(
    index: int, prompt: Prompt, answers: Sequence[Answer], replies: Sequence[RewardReply]
) -> Episode:
    return Episode(
        index=index,
        prompt=prompt,
        answers=answers,
        replies=replies,
        rewards=program_rewards(prompt, replies),
        live=torch.ones(len(answers), dtype=torch.bool),
        advantages=torch.zeros(len(answers)),
    )


def score_episodes(
    learner: Learner,
    episodes: Sequence[Episode],
    *,
    unscored: Collection[int],
    features: torch.dtype | None,
    with_reference: bool,
    on_progress: Callable[[int, int], None],
) -> None:
    """Log-probabilities under the policy that wrote the answers, and under the initial one.

    ``unscored`` are the episodes (by index) that the first step is made on: their own training pass
    gives ``old``. ``features`` is the type that the states are kept in, None to keep none.
    """
    for episode in episodes:
        episode.old = [torch.empty(0)]
    chosen = [e for e in episodes if e.index not in unscored]
    for episode, scored in _scored(learner, chosen, learner.adapter, features):
        episode.old, episode.features = [scored.logprobs], scored.states
    on_progress(len(episodes), len(episodes) * (1 + with_reference))
    if with_reference:
        for episode, scored in _scored(learner, episodes, learner.initial, None):
            episode.reference = [scored.logprobs]
        on_progress(2 * len(episodes), 2 * len(episodes))


def _scored(
    learner: Learner,
    episodes: Sequence[Episode],
    adapter: Adapter | None,
    keep: torch.dtype | None,
) -> Iterator[tuple[Episode, Scored]]:
    prompts, answers = [e.prompt.tokens for e in episodes], [e.tokens for e in episodes]
    return zip(episodes, learner.score_apart(prompts, answers, adapter, keep=keep), strict=True)


def estimate_advantages(
    episodes: Sequence[Episode],
    values: Tensor | None,
    critic: CriticSection,
    *,
    kl_penalty: float,
) -> None:
    """Give every token of a batch its advantage.

    The reward stands at the last token of an answer, and ``kl_penalty`` · (old − reference) is
    taken off at every token where it is above 0. ``values`` (N,) are the critic's; without a critic
    (None) a token's advantage is all that is still to come, which is the answer's reward unless
    there is a penalty. Advantages are then whitened over the batch's answer tokens, except those of
    a single answer, which has no others to be compared with: its level is all that it says.

    A batch of answers whose rewards are all equal carries no signal, with a penalty or without: its
    advantages are zero. What a critic has not learnt, or a penalty however small, would be all that
    is left of them, and whitening would blow that up to the size of a signal.
    """
    scores = torch.cat([e.rewards for e in episodes])
    penalty = _penalty(episodes, kl_penalty)
    spread = float(scores.max() - scores.min())
    signal = len(scores) == 1 or spread > _ROUNDING * float(scores.abs().max())
    lengths = torch.tensor([len(e.tokens) for e in episodes])
    rewards = token_rewards(scores, lengths, penalty)
    if values is None:
        values = torch.zeros_like(rewards)
        raw = generalised_advantages(rewards, values, lengths, gamma=1.0, gae_lambda=1.0)
    else:
        values = values.cpu()
        raw = generalised_advantages(
            rewards, values, lengths, gamma=critic.gamma, gae_lambda=critic.gae_lambda
        )
    white = raw.advantages if len(scores) == 1 else whiten(raw.advantages)
    if not signal:
        white = torch.zeros_like(white)
    cut = lengths.tolist()
    parts = zip(*(torch.split(t, cut) for t in (values, raw.returns, white)), strict=True)
    for episode, part in zip(episodes, parts, strict=True):
        episode.estimate = Estimate(*part)
        episode.signal = signal
        episode.advantages = part[2].mean().reshape(1)


def _penalty(episodes: Sequence[Episode], coefficient: float) -> Tensor | None:
    if coefficient == 0:
        return None
    old = torch.cat([t for e in episodes for t in e.old or []])
    reference = torch.cat([t for e in episodes for t in e.reference or []])
    return coefficient * (old - reference).cpu()
