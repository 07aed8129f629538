"""The words for a reward program that failed."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.errors import RewardError
from trainer.reward.exchange import RewardRequest

LINE_CHARS = 400
TEXT_CHARS = 200
STDERR_CHARS = 2000


class ProgramError(Exception):
    """Why a batch failed, before the program's stderr is known to the end.

    ``problem`` goes on from "the reward program"; ``advice`` is a sentence without its full stop.
    Where the program itself failed, ``told_by_stderr``, its own words come before the advice.
    """

    def __init__(
        self,
        problem: str,
        *,
        line: bytes | None = None,
        request: RewardRequest | None = None,
        advice: str = "",
        told_by_stderr: bool = False,
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.line = line
        self.request = request
        self.advice = advice
        self.told_by_stderr = told_by_stderr

    def about(self, line: bytes | None, request: RewardRequest | None) -> ProgramError:
        """The same failure with the line and the request it is about."""
        return ProgramError(
            self.problem,
            line=line,
            request=request,
            advice=self.advice,
            told_by_stderr=self.told_by_stderr,
        )


@dataclass(frozen=True, slots=True)
class Reporter:
    """Names one reward program in every error about it."""

    command: tuple[str, ...]
    folder: Path

    def error(self, failure: ProgramError, stderr: str | None = None) -> RewardError:
        """``stderr`` is None for a program that never ran."""
        command = json.dumps(self.command, ensure_ascii=False)
        text = (
            f"The reward program (reward_command = {command}, run in {self.folder})"
            f" {failure.problem}."
        )
        if failure.line is not None:
            text += f" The line: {shorten_line(failure.line)}"
        if failure.request is not None:
            dash = "" if failure.line is None else " —"
            text += f"{dash} {describe_request(failure.request)}"
        said = "" if stderr is None else f"\n{_describe_stderr(stderr)}"
        if not failure.advice:
            return RewardError(text + said)
        if failure.told_by_stderr:
            return RewardError(f"{text}{said}\n{failure.advice}.")
        return RewardError(f"{text} {failure.advice}.{said}")


def shorten(text: str, limit: int = TEXT_CHARS) -> str:
    """``text`` on one line, control characters escaped, its middle left out when it is long."""
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]} […{len(text) - 2 * half} characters…] {text[-half:]}"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shorten_line(line: bytes) -> str:
    return shorten(line.decode("utf-8", "backslashreplace"), LINE_CHARS)


def list_indices(indices: Sequence[int], limit: int = 20) -> str:
    shown = ", ".join(str(index) for index in indices[:limit])
    rest = len(indices) - limit
    return f"{shown} and {rest} more" if rest > 0 else shown or "none"


def describe_exit(status: int) -> str:
    """An exit status as ``subprocess`` counts it: negative is a signal."""
    if status >= 0:
        return f"exit status {status}"
    names = {member.value: member.name for member in signal.Signals}
    hint = ", perhaps for want of memory" if -status == signal.SIGKILL else ""
    return f"killed by {names.get(-status, f'signal {-status}')}{hint}"


def describe_request(request: RewardRequest) -> str:
    """The prompt and the answer that an error is about."""
    return (
        f'Prompt (line {request.prompt.line} of the prompts): "{shorten(request.prompt.question)}".'
        f' Answer: "{shorten(request.completion)}".'
    )


def _describe_stderr(stderr: str) -> str:
    lines = [shorten(line, STDERR_CHARS) for line in stderr[-STDERR_CHARS:].splitlines()]
    text = "\n".join(line for line in lines if line.strip())
    return f"Its stderr ends with:\n{text}" if text else "Its stderr is empty."
