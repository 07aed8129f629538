"""``[grpo.judge]``: a language model or a program that ranks the answers of a group."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo

from trainer.config.base import (
    BrokenRule,
    Checked,
    Command,
    LineOfText,
    NotAllowed,
    PathValue,
    Section,
    Text,
    Unset,
)

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,127}")


def _variable(value: object, _info: ValidationInfo) -> object:
    # Capitals only: nearly every provider's key has small letters, and would pass for a name.
    if not isinstance(value, str) or not _VARIABLE.fullmatch(value):
        raise NotAllowed(
            "must be the name of an environment variable in capital letters, such as "
            "OPENAI_API_KEY, never the key itself: put the key in that variable"
        )
    return value


def _base_url(value: object, _info: ValidationInfo) -> object:
    allowed = "must be an http or https address with a host, such as http://127.0.0.1:8080/v1"
    if not isinstance(value, str):
        raise NotAllowed(allowed)
    try:
        parts = urlsplit(value)
        host, _port = parts.hostname, parts.port
    except ValueError as error:
        raise NotAllowed(f"{allowed} ({error})") from None
    if parts.scheme not in ("http", "https") or not host or not value.isprintable():
        raise NotAllowed(allowed)
    if parts.username is not None or parts.query or parts.fragment or " " in value:
        raise NotAllowed(
            "must hold no user name, password, query or space: a key goes in the environment "
            "variable that api_key_env names"
        )
    return value


VariableName = Annotated[
    str, Checked(_variable, "the name of an environment variable, in capital letters")
]
BaseUrl = Annotated[str, Checked(_base_url, "an http or https address")]


class StrategySection(Section):
    """How the answers of a group are laid before the judge."""

    mode: Literal["auto", "listwise", "chunked", "pairwise"] = "auto"
    """`listwise` sends a group in one request, `chunked` in several, `pairwise` two answers at a
    time; `auto` sends one request and splits a group that is too long for it."""

    anchor: bool = True
    """Whether every chunk repeats one answer, which puts the chunks on one scale."""

    max_pairs: Annotated[int | None, Unset("all")] = Field(default=None, ge=1)
    """Most pairs compared in a group."""

    both_orders: bool = True
    """Whether a pair is asked about in both orders; it doubles the requests and cancels the
    judge's preference for a position."""

    aggregation: Literal["win_rate", "bradley_terry"] = "win_rate"
    """How comparisons become scores; `bradley_terry` does better when they are few."""


class ContextSection(Section):
    """How much text a request to the judge may hold."""

    max_request_chars: int = Field(default=60000, ge=1)
    """Most characters in a request; a larger group is split."""

    max_message_chars: int = Field(default=2000, ge=1)
    """Most characters of one message; a longer one loses its middle."""

    head_ratio: float = Field(default=0.4, ge=0, le=1)
    """Share of a shortened message that is taken from its beginning, the rest from its end."""

    def broken_rules(self) -> Iterator[BrokenRule]:
        if self.max_message_chars > self.max_request_chars:
            yield BrokenRule(
                "max_message_chars",
                f"must be at most max_request_chars ({self.max_request_chars}), since a request "
                "holds the message: lower it, or raise max_request_chars",
            )


class JudgeSection(Section):
    """What both kinds of judge have."""

    rubric: Annotated[Text | None, Unset("built in")] = None
    """What a good answer is; the `rubric` of a prompt line replaces it for that prompt."""

    pairwise_rubric: Annotated[Text | None, Unset("built in")] = None
    """The same for comparing two answers."""

    strategy: StrategySection = Field(default_factory=StrategySection)
    """See the section."""

    context: ContextSection = Field(default_factory=ContextSection)
    """See the section."""


class RulerJudge(JudgeSection):
    """A judge behind an endpoint that speaks OpenAI's protocol."""

    type: Literal["ruler"]
    """`ruler` asks a language model, `command` your own program."""

    base_url: BaseUrl
    """The endpoint's address, up to and including the version."""

    model: LineOfText
    """The model's name at the endpoint."""

    api_key_env: VariableName = "OPENAI_API_KEY"
    """The environment variable that holds the key; the key itself is refused in the file."""

    temperature: Annotated[float | None, Unset("the endpoint's")] = Field(default=None, ge=0)
    """Sampling temperature of the judge; 0 repeats itself best."""

    max_concurrency: int = Field(default=4, ge=1)
    """Requests under way at once."""

    timeout_secs: float = Field(default=120, gt=0)
    """Seconds after which a request counts as failed."""

    max_retries: int = Field(default=2, ge=0)
    """How often a failed request is repeated, with growing pauses."""

    cache_path: Annotated[PathValue | None, Unset("no cache")] = None
    """A JSONL file that keeps verdicts, so that the same question is not paid for twice."""


class CommandJudge(JudgeSection):
    """A judge that is a program of yours."""

    type: Literal["command"]
    """`ruler` asks a language model, `command` your own program."""

    command: Command
    """The program and its arguments, started without a shell in the file's folder."""

    timeout_secs: float = Field(default=30, gt=0)
    """Seconds after which a request counts as failed."""


Judge = Annotated[RulerJudge | CommandJudge, Field(discriminator="type")]
