"""The keys of prompts and rewards, which ``[grpo]`` and ``[ppo]`` have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from trainer.config.base import BrokenRule, Command, PathValue, Section, Unset


class RewardModel(Section):
    """A local sequence-classification model that scores answers, alone or beside the program."""

    path: PathValue
    """The model's folder, in the format of Hugging Face: config.json, weights as safetensors,
    tokenizer."""

    weight: float = Field(default=1.0, gt=0)
    """What its score is multiplied by; beside a program, the product is added to its reward."""


class RolloutSection(Section):
    """Where prompts come from and how their answers are scored."""

    prompts: PathValue
    """Chat JSONL, one conversation a line, each ending with a user message."""

    reward_command: Annotated[
        Command | None, Unset("required, unless the section `reward_model` scores alone")
    ] = None
    """The reward program and its arguments, started without a shell in the file's folder."""

    reward_mode: Literal["persistent", "oneshot"] = "persistent"
    """`persistent` keeps one process for the whole run; `oneshot` starts one for each batch and
    lets it read all requests before it answers."""

    reward_timeout_seconds: float = Field(default=300, gt=0)
    """Seconds for one batch, the first with the program's start; then the run stops."""

    prompt_order: Literal["sequential", "shuffled"] = "sequential"
    """Whether prompts are taken in the file's order or in one drawn anew for each round."""

    reward_model: RewardModel | None = None
    """See the section."""

    def broken_rules(self) -> Iterator[BrokenRule]:
        if self.reward_command is not None:
            return
        if self.reward_model is None:
            yield BrokenRule(
                "reward_command",
                'is required. It takes a program and its arguments, such as ["python3", '
                '"reward.py"]; or add the section reward_model, so that a model scores alone',
            )
            return
        for key in ("reward_mode", "reward_timeout_seconds"):
            if self.given(key):
                yield BrokenRule(
                    key, "has no effect without reward_command: add that, or remove the key"
                )
