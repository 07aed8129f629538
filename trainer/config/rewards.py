"""The keys of prompts and rewards, which ``[grpo]`` and ``[ppo]`` have in common."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trainer.config.base import PathValue, Section


class RolloutSection(Section):
    """Where prompts come from and how their answers are scored."""

    prompts: PathValue
    """Chat JSONL, one conversation a line, each ending with a user message."""

    reward_mode: Literal["persistent", "oneshot"] = "persistent"
    """`persistent` keeps one process for the whole run; `oneshot` starts one for each batch and
    lets it read all requests before it answers."""

    reward_timeout_seconds: float = Field(default=300, gt=0)
    """Seconds for one batch, the first with the program's start; then the run stops."""

    prompt_order: Literal["sequential", "shuffled"] = "sequential"
    """Whether prompts are taken in the file's order or in one drawn anew for each round."""
