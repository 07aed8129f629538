"""Opens what scores a run's answers: a reward program, a reward model, or both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from trainer.closing import Closing
from trainer.errors import RewardError
from trainer.reward.classifier import PART, open_reward_model
from trainer.reward.exchange import ExchangeLog, RewardReply, RewardRequest
from trainer.reward.program import RewardProgram, open_reward_program
from trainer.reward.report import shorten

if TYPE_CHECKING:
    import torch

PROGRAM_PART = "program"
"""The name of the program's own reward among the parts of a reply."""


class ModelSettings(Protocol):
    """The keys of the section ``reward_model``."""

    @property
    def path(self) -> Path: ...

    @property
    def weight(self) -> float: ...


class RewardSettings(Protocol):
    """The keys of an algorithm's section that say how answers are scored. One of ``reward_command``
    and ``reward_model`` is there."""

    @property
    def reward_command(self) -> Sequence[str] | None: ...

    @property
    def reward_mode(self) -> Literal["persistent", "oneshot"]: ...

    @property
    def reward_timeout_seconds(self) -> float: ...

    @property
    def reward_model(self) -> ModelSettings | None: ...


def open_reward(
    settings: RewardSettings,
    *,
    folder: Path,
    device: torch.device,
    judge_allowed: bool,
    exchange: ExchangeLog | None = None,
    on_note: Callable[[str], None] | None = None,
    on_stderr: Callable[[str], None] | None = None,
) -> RewardProgram:
    """The reward program, started in ``folder``, the reward model, on ``device``, or both as one.

    ``exchange`` hears the lines to and from a program, ``on_stderr`` what it writes to stderr,
    ``on_note`` what is to be said of a model.

    Raises:
        RewardError: the program cannot be started.
        ConfigError: the model cannot be used.
    """
    with ExitStack() as opened:
        program = model = None
        # First, so that a program that loads something does so while the model is loaded.
        if settings.reward_command is not None:
            program = opened.enter_context(
                open_reward_program(
                    settings.reward_command,
                    mode=settings.reward_mode,
                    timeout_seconds=settings.reward_timeout_seconds,
                    folder=folder,
                    judge_allowed=judge_allowed,
                    exchange=exchange,
                    on_stderr=on_stderr,
                )
            )
        if settings.reward_model is not None:
            keys = settings.reward_model
            model = open_reward_model(keys.path, keys.weight, device=device, on_note=on_note)
        # Nothing failed: from here on the caller closes them.
        opened.pop_all()
    if program is not None and model is not None:
        return ProgramAndModel(program, model)
    one = program or model
    if one is None:
        raise ValueError("neither reward_command nor reward_model is set")
    return one


class ProgramAndModel(Closing):
    """Adds two rewards: the program's, and the model's (its weight is in it already)."""

    def __init__(self, program: RewardProgram, model: RewardProgram) -> None:
        self._program = program
        self._model = model

    def score(
        self,
        requests: Sequence[RewardRequest],
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[RewardReply]:
        """The replies, in the order of ``requests``. For the progress, a score is half an answer.

        Raises RewardError, also where the program has a part with a name that is taken here.
        """

        def half(before: int) -> Callable[[int, int], None] | None:
            if on_progress is None:
                return None
            return lambda done, _: on_progress((before + done) // 2, len(requests))

        of_program = self._program.score(requests, half(0))
        for request, reply in zip(requests, of_program, strict=True):
            _check_parts(request, reply)
        of_model = self._model.score(requests, half(len(requests)))
        return [_sum(*pair) for pair in zip(of_program, of_model, strict=True)]

    def close(self) -> None:
        try:
            self._program.close()
        finally:
            self._model.close()

    def stderr_tail(self) -> str:
        return self._program.stderr_tail()


def _check_parts(request: RewardRequest, reply: RewardReply) -> None:
    for name in (PART, PROGRAM_PART):
        if name in reply.parts:
            raise RewardError(
                f'The reward program sent a part called "{name}" for the answer '
                f'"{shorten(request.completion)}" (line {request.prompt.line} of the prompts); '
                "beside a reward model that name is taken. Give the part another one."
            )


def _sum(program: RewardReply, model: RewardReply) -> RewardReply:
    return replace(
        program,
        reward=program.reward + model.reward,
        parts={**program.parts, PROGRAM_PART: program.reward, **model.parts},
    )
