"""The user's reward program, as the rest of retrograd sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, Protocol, Self

from trainer.reward.exchange import ExchangeLog, RewardReply, RewardRequest
from trainer.reward.oneshot import OneshotProgram
from trainer.reward.persistent import PersistentProgram
from trainer.reward.process import require_command
from trainer.reward.report import ProgramError, Reporter

__all__ = ["ExchangeLog", "RewardProgram", "RewardReply", "RewardRequest", "open_reward_program"]


class RewardProgram(Protocol):
    """Scores answers; a context manager that leaves no process behind."""

    def score(
        self,
        requests: Sequence[RewardRequest],
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[RewardReply]:
        """The replies, in the order of ``requests``, which is one batch.

        ``on_progress`` gets (done, total) at each reply. Raises ``RewardError`` when the program
        dies, is late, or answers against the protocol; its processes are gone by then.
        """
        ...

    def close(self) -> None: ...

    def stderr_tail(self) -> str:
        """The last 16 KiB that the program wrote to stderr (its last start, in oneshot mode)."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def open_reward_program(
    command: Sequence[str],
    *,
    mode: Literal["persistent", "oneshot"],
    timeout_seconds: float,
    folder: Path,
    judge_allowed: bool,
    exchange: ExchangeLog | None = None,
    on_stderr: Callable[[str], None] | None = None,
) -> RewardProgram:
    """The program of ``reward_command``, started in ``folder`` without a shell.

    ``timeout_seconds`` bounds each batch, the first one's start-up included. ``exchange`` hears
    every line sent and received, ``on_stderr`` after each batch what the program has written to
    stderr since the one before, its last 16 KiB. Raises ``RewardError`` when the command cannot be
    started.
    """
    reporter = Reporter(tuple(command), folder)
    kind = PersistentProgram if mode == "persistent" else OneshotProgram
    try:
        require_command(reporter.command, folder)
        return kind(
            reporter,
            timeout_seconds=timeout_seconds,
            judge_allowed=judge_allowed,
            exchange=exchange,
            on_stderr=on_stderr,
        )
    except ProgramError as failure:
        raise reporter.error(failure) from failure.__cause__
