"""A new reward program for each batch: all requests, the end of input, all replies."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing

from trainer.closing import Closing
from trainer.reward.channel import Channel
from trainer.reward.exchange import ExchangeLog, RewardReply, RewardRequest
from trainer.reward.process import ProgramProcess
from trainer.reward.protocol import decode_line, parse_reply, request_line
from trainer.reward.report import ProgramError, Reporter, describe_exit, shorten_line


class OneshotProgram(Closing):
    def __init__(
        self,
        reporter: Reporter,
        *,
        timeout_seconds: float,
        judge_allowed: bool,
        exchange: ExchangeLog | None,
        on_stderr: Callable[[str], None] | None,
    ) -> None:
        self._reporter = reporter
        self._timeout = timeout_seconds
        self._judge_allowed = judge_allowed
        self._on_stderr = on_stderr
        self._exchange = exchange
        self._stderr = ""

    def score(
        self,
        requests: Sequence[RewardRequest],
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[RewardReply]:
        if not requests:
            return []
        try:
            return self._run(requests, on_progress)
        except ProgramError as failure:
            raise self._reporter.error(failure, self._stderr) from failure.__cause__

    def close(self) -> None:
        """Nothing to do: each batch ends its own program."""

    def stderr_tail(self) -> str:
        return self._stderr

    def _run(
        self, requests: Sequence[RewardRequest], on_progress: Callable[[int, int], None] | None
    ) -> list[RewardReply]:
        self._stderr = ""
        deadline = time.monotonic() + self._timeout
        process = ProgramProcess(self._reporter.command, self._reporter.folder)
        batch = _Batch(requests, self._judge_allowed, on_progress)
        try:
            with closing(Channel(process, self._exchange)) as channel:
                self._converse(process, channel, batch, deadline)
        finally:
            process.end()
            self._stderr = process.stderr_tail()
            if self._on_stderr and self._stderr:
                self._on_stderr(self._stderr)
        return batch.replies

    def _converse(
        self, process: ProgramProcess, channel: Channel, batch: _Batch, deadline: float
    ) -> None:
        try:
            _send(channel, batch.requests)
            batch.read(channel, deadline)
            self._require_success(process, batch, deadline)
            batch.finish(channel.take_unfinished())
        except TimeoutError:
            raise self._late(channel, batch) from None

    def _require_success(self, process: ProgramProcess, batch: _Batch, deadline: float) -> None:
        if not process.wait_exited(max(0.0, deadline - time.monotonic())):
            raise TimeoutError
        status = process.end()
        if status != 0:
            raise ProgramError(
                f"ended ({describe_exit(status)}) after it scored {batch.progress}",
                advice="In oneshot mode it must end with exit status 0",
                told_by_stderr=True,
            )

    def _late(self, channel: Channel, batch: _Batch) -> ProgramError:
        unfinished = channel.take_unfinished()
        tail = f"; its last line has no end: {shorten_line(unfinished)}" if unfinished else ""
        return ProgramError(
            f"scored {batch.progress} and did not end within {self._timeout:g} s"
            f" (reward_timeout_seconds){tail}",
            advice="In oneshot mode it must end once it has answered all of its input; raise"
            " reward_timeout_seconds if it needs longer",
        )


class _Batch:
    """The replies to one batch, which carry no index: the n-th belongs to the n-th request."""

    def __init__(
        self,
        requests: Sequence[RewardRequest],
        judge_allowed: bool,
        on_progress: Callable[[int, int], None] | None,
    ) -> None:
        self.replies: list[RewardReply] = []
        self.requests = requests
        self._judge_allowed = judge_allowed
        self._on_progress = on_progress

    @property
    def progress(self) -> str:
        return f"{len(self.replies)} of {len(self.requests)} answers"

    def read(self, channel: Channel, deadline: float) -> None:
        while (line := channel.next_line(deadline)) is not None:
            self._take(line)

    def finish(self, unfinished: bytes) -> None:
        """Takes a last line that came without its newline, then counts."""
        if unfinished:
            self._take(unfinished)
        if len(self.replies) < len(self.requests):
            raise ProgramError(
                f"sent {len(self.replies)} replies for {len(self.requests)} requests",
                request=self.requests[len(self.replies)],
                advice="Each request needs one reply; the first without one is shown",
            )

    def _take(self, line: bytes) -> None:
        place = len(self.replies)
        request = self.requests[place] if place < len(self.requests) else None
        try:
            fields = decode_line(line)
            if request is None:
                raise ProgramError(
                    f"sent more than the {place} replies that were asked for",
                    advice="Each request needs exactly one reply",
                )
            self.replies.append(parse_reply(fields, self._judge_allowed))
        except ProgramError as failure:
            raise failure.about(line, request) from failure.__cause__
        if self._on_progress is not None:
            self._on_progress(len(self.replies), len(self.requests))


def _send(channel: Channel, requests: Sequence[RewardRequest]) -> None:
    for request in requests:
        try:
            line = request_line(request)
        except ProgramError as failure:
            raise failure.about(None, request) from failure.__cause__
        channel.send(line)
    channel.end_input()
