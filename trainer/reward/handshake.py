"""Telling a program that is slow to greet from one that never will."""

from __future__ import annotations

import time

from trainer.errors import RewardError
from trainer.reward.exchange import RewardRequest
from trainer.reward.oneshot import OneshotProgram
from trainer.reward.process import ProgramProcess
from trainer.reward.report import ProgramError, Reporter

QUIET_SECONDS = 3.0

_ONESHOT = 'reward_mode = "oneshot"'


def describe_no_handshake(
    problem: str, advice: str = "", line: bytes | None = None
) -> ProgramError:
    remedy = (
        "In persistent mode the first line it writes must answer the handshake, and be flushed;"
        f" a program that reads all of its input before it answers needs {_ONESHOT}"
    )
    return ProgramError(problem, line=line, advice=f"{advice}. {remedy}" if advice else remedy)


def describe_failed_start(problem: str, *, met_handshake: bool) -> ProgramError:
    """For a program that failed before it answered the handshake: the reason is on its stderr, and
    only one that had read the handshake can have failed because of it."""
    advice = f"If it took the handshake for a request, it needs {_ONESHOT}"
    return ProgramError(problem, advice=advice if met_handshake else "", told_by_stderr=True)


class OneshotSuspicion:
    """Finds out whether a program that leaves the handshake unanswered expects oneshot mode.

    Such a program waits for the end of its input, as one that loads a large model keeps silent:
    neither silence nor idleness proves anything. So when the program has used no processor time
    for a while and may be waiting for input, a second one is started and given one request in
    oneshot mode. Only if that is answered properly is the program refused. This is tried once.
    """

    def __init__(
        self,
        reporter: Reporter,
        process: ProgramProcess,
        request: RewardRequest,
        deadline: float,
    ) -> None:
        self._reporter = reporter
        self._process = process
        self._request = request
        self._deadline = deadline
        self._patience = min(QUIET_SECONDS, (deadline - time.monotonic()) / 4)
        self._quiet_since = time.monotonic()
        self._cpu_seconds = 0.0
        self._tried = False

    def look(self) -> None:
        """To be called while the handshake is unanswered. Raises ``ProgramError``."""
        if self._tried or not self._is_stuck():
            return
        self._tried = True
        if self._answers_in_oneshot_mode():
            raise describe_no_handshake(
                "waits for the end of its input instead of answering the handshake, and does"
                f" score answers in oneshot mode. Set {_ONESHOT}"
            )

    def _is_stuck(self) -> bool:
        used = self._process.cpu_seconds()
        if used != self._cpu_seconds or not self._process.waits_on_pipe():
            self._cpu_seconds = used
            self._quiet_since = time.monotonic()
        return time.monotonic() - self._quiet_since >= self._patience

    def _answers_in_oneshot_mode(self) -> bool:
        remaining = self._deadline - time.monotonic()
        trial = OneshotProgram(
            self._reporter,
            timeout_seconds=remaining / 2,
            judge_allowed=True,
            exchange=None,
            on_stderr=None,
        )
        try:
            trial.score([self._request])
        except RewardError:
            return False  # It proves nothing: a persistent program fails here too.
        return True
