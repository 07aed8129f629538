"""What a prompt is, from the line of a file to the tokens the model reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class PromptLine:
    """One line of a prompt file, before it is rendered.

    ``line`` counts from 1. ``metadata`` holds the line's extra fields, which the reward program
    receives. ``key`` names the conversation: equal messages have equal keys.
    """

    line: int
    messages: tuple[Message, ...]
    metadata: Mapping[str, Any]
    rubric: str | None
    key: str

    @property
    def question(self) -> str:
        """The content of the last user message."""
        return self.messages[-1].content


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt line and the token ids that the sampler and the trainer both read."""

    line: PromptLine
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DataLine:
    """One line of a file to learn from, before it is rendered: a conversation or plain text.
    ``number`` counts from 1."""

    number: int
    content: str | tuple[Message, ...]
