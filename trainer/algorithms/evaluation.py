"""Measuring the policy on prompts that it is not trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainer.algorithms.stopwatch import Stopwatch
from trainer.chat.messages import Prompt
from trainer.checkpoint.file import State
from trainer.config.common import EvaluationSection
from trainer.monitor.protocol import GroupRecord, Monitor, Trajectory
from trainer.reward.program import RewardProgram, RewardRequest
from trainer.rollout.engine import RolloutEngine
from trainer.rollout.seeds import answer_seed, mix64

_STREAM = 0xE7A1
"""Sets the seeds of evaluations apart from those of training."""


@dataclass(slots=True)
class Evaluator:
    """One answer to each held-out prompt, sampled as in training.

    The seeds are the same every time, so that two evaluations differ by the policy and not by the
    luck of the draw. Rewards are the program's (or the model's) own: no penalty, no judge.
    """

    section: EvaluationSection
    seed: int
    prompts: Sequence[Prompt]
    engine: RolloutEngine
    reward: RewardProgram
    monitor: Monitor
    last: int = -1
    best: float | None = None
    best_update: int = 0
    without_better: int = 0

    def is_due(self, update: int) -> bool:
        return update % self.section.every_iterations == 0

    def evaluate(self, update: int) -> None:
        """Measure the policy after ``update`` (0: before the first). Raises RolloutStopped and
        RewardError."""
        watch = Stopwatch()
        seeds = [
            [answer_seed(mix64(self.seed ^ _STREAM), 0, slot, 0)]
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
            RewardRequest(p.line, a.text) for p, [a] in zip(self.prompts, answers, strict=True)
        ]
        with watch("reward"):
            replies = self.reward.score(requests)
        records = [
            GroupRecord(
                slot,
                prompt.line,
                [
                    Trajectory(
                        member=0,
                        answer=answer,
                        reward=reply.reward,
                        reward_raw=reply.reward,
                        judge_term=0.0,
                        parts=reply.parts,
                        advantage=0.0,
                        trained=False,
                        skip_reason="evaluation",
                    )
                ],
            )
            for slot, (prompt, [answer], reply) in enumerate(
                zip(self.prompts, answers, replies, strict=True)
            )
        ]
        rewards = np.array([reply.reward for reply in replies])
        self._judge(update, float(rewards.mean()))
        values = {
            "eval/mean_reward": float(rewards.mean()),
            "eval/reward_min": float(rewards.min()),
            "eval/reward_max": float(rewards.max()),
            "eval/reward_std": float(rewards.std()),
        }
        self.monitor.evaluation(update, records, values | watch.metrics())

    @property
    def improved(self) -> bool:
        """Whether the last evaluation is the best one so far."""
        return self.best_update == self.last

    @property
    def exhausted(self) -> bool:
        """Whether ``patience`` evaluations in a row brought nothing better."""
        patience = self.section.patience
        return patience is not None and self.without_better >= patience

    def _judge(self, update: int, mean: float) -> None:
        self.last = update
        if self.best is None or mean > self.best + self.section.min_delta:
            self.best, self.best_update, self.without_better = mean, update, 0
        else:
            self.without_better += 1

    def state(self) -> State:
        return {
            "last": self.last,
            "best": self.best,
            "best_update": self.best_update,
            "without_better": self.without_better,
        }

    def load_state(self, state: State) -> None:
        self.last, self.best = state["last"], state["best"]
        self.best_update, self.without_better = state["best_update"], state["without_better"]
