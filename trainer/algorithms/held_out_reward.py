"""The reward of answers to held-out prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from trainer.algorithms.evaluation import Measured
from trainer.algorithms.stopwatch import Stopwatch
from trainer.chat.messages import Prompt
from trainer.monitor.protocol import GroupRecord, Monitor, Trajectory
from trainer.reward.program import RewardReply, RewardRequest
from trainer.rollout.answers import Answer
from trainer.rollout.engine import RolloutEngine
from trainer.rollout.seeds import answer_seed, mix64

_STREAM = 0xE7A1
"""Sets the seeds of evaluations apart from those of training."""


class Scorer(Protocol):
    """A RewardProgram, or what asks one."""

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardReply]: ...


@dataclass(frozen=True, slots=True)
class HeldOutReward:
    """``samples`` answers to each held-out prompt, sampled as in training.

    The seeds are the same every time, so that two evaluations differ by the policy and not by the
    luck of the draw. Rewards are the program's (or the model's) own: no penalty, no judge.
    """

    seed: int
    prompts: Sequence[Prompt]
    engine: RolloutEngine
    reward: Scorer
    monitor: Monitor
    samples: int = 1

    @property
    def lower_is_better(self) -> bool:
        return False

    def measure(self) -> Measured:
        watch = Stopwatch()
        seeds = [
            [answer_seed(mix64(self.seed ^ _STREAM), 0, slot, m) for m in range(self.samples)]
            for slot in range(len(self.prompts))
        ]
        with watch("generate"):
            answers = self.engine.sample(
                [p.tokens for p in self.prompts],
                seeds,
                on_progress=lambda done, total: self.monitor.progress("evaluate", done, total),
                should_stop=self.monitor.should_stop,
            )
        requests = [
            RewardRequest(prompt.line, answer.text)
            for prompt, own in zip(self.prompts, answers, strict=True)
            for answer in own
        ]
        with watch("reward"):
            replies = self.reward.score(requests)
        records = [
            GroupRecord(slot, prompt.line, self._scored(slot, own, replies))
            for slot, (prompt, own) in enumerate(zip(self.prompts, answers, strict=True))
        ]
        rewards = np.array([reply.reward for reply in replies])
        values = {
            "eval/mean_reward": float(rewards.mean()),
            "eval/reward_min": float(rewards.min()),
            "eval/reward_max": float(rewards.max()),
            "eval/reward_std": float(rewards.std()),
        }
        return Measured(values["eval/mean_reward"], records, values | watch.metrics())

    def _scored(
        self, slot: int, answers: Sequence[Answer], replies: Sequence[RewardReply]
    ) -> list[Trajectory]:
        """The answers to the prompt ``slot``, each with its reply among those of all answers."""
        first = slot * self.samples
        own = replies[first : first + self.samples]
        return [_trajectory(m, a, r) for m, (a, r) in enumerate(zip(answers, own, strict=True))]


def _trajectory(member: int, answer: Answer, reply: RewardReply) -> Trajectory:
    return Trajectory(
        member=member,
        answer=answer,
        reward=reply.reward,
        reward_raw=reply.reward,
        judge_term=0.0,
        parts=reply.parts,
        advantage=0.0,
        trained=False,
        skip_reason="evaluation",
    )
