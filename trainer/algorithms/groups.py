"""A group of answers on its way from the sampler to the loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trainer.algorithms.advantages import group_advantages, has_signal, overlong_penalty
from trainer.chat.messages import Prompt
from trainer.config.grpo import GrpoSection
from trainer.errors import RewardError
from trainer.health.audit import AuditFlag
from trainer.judge.judge import Ruling
from trainer.model.packing import Ids
from trainer.monitor.protocol import GroupRecord, SkipReason, Trajectory
from trainer.reward.program import RewardReply
from trainer.rollout.answers import Answer


@dataclass(slots=True)
class Group:
    """The answers to one prompt of one update, with what was decided about each.

    ``rewards`` (G,) F64 are those trained on, ``live`` (G,) is True for answers that count, and
    ``advantages`` (G,) are zero for those that do not. ``old`` and ``reference`` hold, for each
    *live* answer in order, its token log-probabilities (n,) once they were scored. ``judge_terms``
    (G,) are what the judge added to the rewards, where there is one.
    """

    index: int
    prompt: Prompt
    answers: Sequence[Answer]
    replies: Sequence[RewardReply]
    rewards: Tensor
    live: Tensor
    advantages: Tensor
    ruling: Ruling | None = None
    judge_terms: Tensor | None = None
    old: list[Tensor] | None = None
    reference: list[Tensor] | None = None
    members: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.members = torch.nonzero(self.live).flatten().tolist()

    @property
    def trainable(self) -> bool:
        return has_signal(self.rewards, self.live)

    @property
    def live_tokens(self) -> list[Ids]:
        return [self.answers[i].tokens for i in self.members]

    def sampler_logprobs(self, device: torch.device) -> list[Tensor]:
        """The sampler's own log-probabilities of each live answer."""
        return [torch.from_numpy(self.answers[i].logprobs).to(device) for i in self.members]

    def record(self, flags: Sequence[tuple[AuditFlag, ...]]) -> GroupRecord:
        """What watchers get; ``flags`` are what the audit said of each answer."""
        trajectories = [self._trajectory(i, flags[i]) for i in range(len(self.answers))]
        return GroupRecord(self.index, self.prompt.line, trajectories)

    def _trajectory(self, i: int, flags: tuple[AuditFlag, ...]) -> Trajectory:
        trained = self.trainable and bool(self.live[i])
        return Trajectory(
            member=i,
            answer=self.answers[i],
            reward=float(self.rewards[i]),
            reward_raw=self.replies[i].reward,
            judge_term=0.0 if self.judge_terms is None else float(self.judge_terms[i]),
            parts=self.replies[i].parts,
            advantage=float(self.advantages[i]),
            trained=trained,
            skip_reason=None if trained else self._skip_reason(i),
            audit=flags,
            judge_words=self._judge_words(i),
        )

    def _judge_words(self, i: int) -> str | None:
        if self.ruling is None:
            return None
        failure = self.ruling.failure
        return failure.reason if failure else self.ruling.verdicts[i].explanation

    def _skip_reason(self, i: int) -> SkipReason:
        if self.ruling is not None and self.ruling.failure is not None:
            return "judge_dropped"
        return "zero_signal" if self.live[i] else "truncated"


def program_rewards(prompt: Prompt, replies: Sequence[RewardReply]) -> Tensor:
    """The rewards (G,) F64 as they were given. Raises RewardError for one whose square F32 cannot
    hold: losses and variances are made of squares."""
    rewards = torch.tensor([r.reward for r in replies], dtype=torch.float64)
    if not rewards.float().square().isfinite().all():
        raise RewardError(
            f"a reward of {float(rewards[rewards.abs().argmax()]):g} is too large to train on "
            f"(prompt line {prompt.line.line}). Keep rewards within about ±1000: their scale is "
            f"that of the training step."
        )
    return rewards


def form_group(
    index: int,
    prompt: Prompt,
    answers: Sequence[Answer],
    replies: Sequence[RewardReply],
    section: GrpoSection,
    ruling: Ruling | None = None,
) -> Group:
    """Turn the program's rewards into advantages, in the order that the method prescribes: judge,
    overlong penalty, truncation mask, baseline over the live, groups without signal."""
    rewards = program_rewards(prompt, replies)
    terms = None if ruling is None else _judge_terms(replies, section, ruling)
    if terms is not None:
        rewards = rewards + terms
    penalty = section.overlong_penalty
    if penalty is not None:
        rewards = rewards + overlong_penalty(
            torch.tensor([len(a.tokens) for a in answers]),
            max_new_tokens=section.sampling.max_new_tokens,
            buffer_tokens=penalty.buffer_tokens,
            max_penalty=penalty.max_penalty,
        )
    masked = [section.mask_truncated and a.truncated for a in answers]
    live = ~torch.tensor(masked, dtype=torch.bool)
    if ruling is not None and ruling.failure is not None:
        live = torch.zeros_like(live)
    return Group(
        index=index,
        prompt=prompt,
        answers=answers,
        replies=replies,
        rewards=rewards,
        live=live,
        advantages=group_advantages(rewards, live, section.baseline),
        ruling=ruling,
        judge_terms=terms,
    )


def _judge_terms(replies: Sequence[RewardReply], section: GrpoSection, ruling: Ruling) -> Tensor:
    """What the judge adds to each reward (G,): weight times verdict; zero where it failed."""
    if ruling.failure is not None:
        return torch.zeros(len(replies), dtype=torch.float64)
    terms = [
        judge_weight(reply, section) * verdict.score
        for reply, verdict in zip(replies, ruling.verdicts, strict=True)
    ]
    return torch.tensor(terms, dtype=torch.float64)


def judge_weight(reply: RewardReply, section: GrpoSection) -> float:
    """What a verdict on this answer weighs: as the program says, or as configured."""
    return section.judge_weight or 0.0 if reply.judge_weight is None else reply.judge_weight
