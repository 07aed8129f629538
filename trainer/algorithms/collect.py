"""Sampling and scoring the groups of one update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from trainer.algorithms.groups import Group
from trainer.algorithms.order import PromptOrder
from trainer.algorithms.stopwatch import Stopwatch
from trainer.chat.messages import Prompt
from trainer.config.grpo import GrpoSection
from trainer.config.ppo import PpoSection
from trainer.monitor.protocol import Stage
from trainer.reward.program import RewardProgram, RewardReply, RewardRequest
from trainer.rollout.answers import Answer
from trainer.rollout.engine import RolloutEngine
from trainer.rollout.seeds import answer_seed

G = TypeVar("G", bound=Group)


@dataclass(frozen=True, slots=True)
class Sampled:
    """The answers to one prompt and what the program said of them; ``slot`` is the prompt's place
    in the update."""

    slot: int
    prompt: Prompt
    answers: Sequence[Answer]
    replies: Sequence[RewardReply]


Form = Callable[[Sequence[Sampled], Stopwatch], list[G]]
"""Makes what an algorithm trains on of sampled answers."""


@dataclass(frozen=True, slots=True)
class Collector(Generic[G]):
    """The sampler and the reward program, as a source of groups."""

    section: GrpoSection | PpoSection
    order: PromptOrder
    engine: RolloutEngine
    reward: RewardProgram
    form: Form[G]

    def groups(
        self,
        update: int,
        count: int,
        watch: Stopwatch,
        *,
        position: int,
        first_slot: int = 0,
        on_progress: Callable[[Stage, int, int], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> list[G]:
        """``count`` groups of ``update`` (counted from 1), the first of which is its group
        ``first_slot``. The update began at ``position`` of the order of prompts; seeds depend on
        nothing but run, update, slot and member.

        Raises RolloutStopped when ``should_stop`` asks, and RewardError.
        """
        section = self.section
        slots = range(first_slot, first_slot + count)
        prompts = [self.order.at(position + slot) for slot in slots]
        seeds = [
            [answer_seed(section.sampling.seed, update, slot, m) for m in range(section.group_size)]
            for slot in slots
        ]

        def telling(stage: Stage) -> Callable[[int, int], None] | None:
            if on_progress is None:
                return None
            return lambda done, total: on_progress(stage, done, total)

        with watch("generate"):
            answers = self.engine.sample(
                [p.tokens for p in prompts],
                seeds,
                on_progress=telling("generate"),
                should_stop=should_stop,
            )
        requests = [
            RewardRequest(prompt.line, a.text)
            for prompt, group in zip(prompts, answers, strict=True)
            for a in group
        ]
        with watch("reward"):
            replies = self.reward.score(requests, telling("reward"))
        size = section.group_size
        sampled = [
            Sampled(slot, prompt, group, replies[i * size : (i + 1) * size])
            for i, (slot, prompt, group) in enumerate(zip(slots, prompts, answers, strict=True))
        ]
        return self.form(sampled, watch)
