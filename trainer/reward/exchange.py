"""What goes to a reward program, what comes back, and who may listen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from trainer.chat.messages import PromptLine


@dataclass(frozen=True, slots=True)
class RewardRequest:
    """One answer to score: the prompt it answers and its text."""

    prompt: PromptLine
    completion: str


@dataclass(frozen=True, slots=True)
class RewardReply:
    """What the program said of one answer.

    ``reward`` and the values of ``parts`` are finite. ``judge_weight`` (≥ 0) is None unless the
    program overrides the judge's weight for this answer.
    """

    reward: float
    parts: Mapping[str, float]
    judge_weight: float | None


class ExchangeLog(Protocol):
    """Hears each line of the conversation, without its newline, on the thread that scores."""

    def sent(self, line: str) -> None: ...

    def received(self, line: str) -> None: ...
