"""One reward program for the whole run: handshake, batches, end markers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from trainer.closing import Closing
from trainer.errors import RewardError
from trainer.reward.channel import Channel
from trainer.reward.exchange import ExchangeLog, RewardReply, RewardRequest
from trainer.reward.handshake import (
    OneshotSuspicion,
    describe_failed_start,
    describe_no_handshake,
)
from trainer.reward.process import ProgramProcess
from trainer.reward.protocol import (
    batch_end_line,
    check_batch_end,
    check_handshake,
    decode_line,
    handshake_line,
    is_batch_end,
    parse_reply,
    reply_index,
    request_line,
)
from trainer.reward.report import ProgramError, Reporter, describe_exit, list_indices, shorten_line

EXIT_PATIENCE_SECONDS = 1.0
CLOSE_PATIENCE_SECONDS = 5.0


class PersistentProgram(Closing):
    """Starts the program at once, so that it loads while the first answers are sampled.

    A batch that fails ends the program for good: nothing is tried again behind the user's back.
    """

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
        with ExitStack() as opened:
            self._process = ProgramProcess(reporter.command, reporter.folder)
            opened.callback(self._process.end)
            self._channel = Channel(self._process, exchange)
            opened.callback(self._channel.close)
            self._channel.send(handshake_line())
            # Nothing failed: from here on `_stop` ends them.
            opened.pop_all()
        self._greeted = False
        self._over = False
        self._batch = 0

    def score(
        self,
        requests: Sequence[RewardRequest],
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[RewardReply]:
        if self._over:
            raise RewardError("The reward program was ended and scores no further answers.")
        if not requests:
            return []
        self._batch += 1
        try:
            replies = self._run_batch(requests, on_progress)
            self._tell_stderr()
            return replies
        except ProgramError as failure:
            self._stop()
            raise self._reporter.error(failure, self.stderr_tail()) from failure.__cause__
        except BaseException:
            # Whatever interrupted it, the conversation is in the middle of a batch.
            self._stop()
            raise

    def close(self) -> None:
        """Closes the program's input, gives it a few seconds to end, then ends its group."""
        if self._over:
            return
        try:
            deadline = time.monotonic() + CLOSE_PATIENCE_SECONDS
            self._channel.end_input()
            self._channel.discard_until(deadline)
            self._process.wait_gone(max(0.0, deadline - time.monotonic()))
        finally:
            self._stop()
            self._tell_stderr()

    def stderr_tail(self) -> str:
        return self._process.stderr_tail()

    def _tell_stderr(self) -> None:
        if self._on_stderr and (said := self._process.fresh_stderr()):
            self._on_stderr(said)

    def _stop(self) -> None:
        self._over = True
        self._channel.close()
        self._process.end()

    def _run_batch(
        self, requests: Sequence[RewardRequest], on_progress: Callable[[int, int], None] | None
    ) -> list[RewardReply]:
        deadline = time.monotonic() + self._timeout
        if not self._greeted:
            self._shake_hands(requests[0], deadline)
        for index, request in enumerate(requests):
            try:
                line = request_line(request, (self._batch, index))
            except ProgramError as failure:
                raise failure.about(None, request) from failure.__cause__
            self._channel.send(line)
        self._channel.send(batch_end_line(self._batch))
        return self._collect(requests, deadline, on_progress)

    def _shake_hands(self, first: RewardRequest, deadline: float) -> None:
        suspicion = OneshotSuspicion(self._reporter, self._process, first, deadline)
        try:
            line = self._channel.next_line(deadline, suspicion.look)
        except TimeoutError:
            raise describe_no_handshake(
                f"did not answer the handshake within {self._timeout:g} s"
                f" (reward_timeout_seconds){self._unfinished()}",
            ) from None
        if line is None:
            raise self._not_greeted()
        try:
            check_handshake(decode_line(line))
        except ProgramError as failure:
            raise describe_no_handshake(failure.problem, failure.advice, line) from failure
        self._greeted = True

    def _not_greeted(self) -> ProgramError:
        """Called when its stdout ended before the handshake was answered."""
        left_unread = self._process.left_input()
        how, failed = self._how_it_ended()
        problem = f"{how} before it answered the handshake{self._unfinished()}"
        if failed:
            return describe_failed_start(problem, met_handshake=not left_unread)
        return describe_no_handshake(problem)

    def _collect(
        self,
        requests: Sequence[RewardRequest],
        deadline: float,
        on_progress: Callable[[int, int], None] | None,
    ) -> list[RewardReply]:
        replies: dict[int, RewardReply] = {}
        while True:
            # What names no request is shown with the first one still unanswered.
            request = next((r for i, r in enumerate(requests) if i not in replies), None)
            progress = f"{len(replies)} of {len(requests)} answers of batch {self._batch}"
            line = self._next_line(deadline, progress, request)
            try:
                fields = decode_line(line)
                if is_batch_end(fields):
                    check_batch_end(fields, self._batch)
                    _require_all(replies, len(requests))
                    return [replies[index] for index in range(len(requests))]
                index = reply_index(fields, self._batch, len(requests))
                request = requests[index]
                if index in replies:
                    raise _duplicate(index, replies, len(requests))
                replies[index] = parse_reply(fields, self._judge_allowed)
            except ProgramError as failure:
                raise failure.about(line, request) from failure.__cause__
            if on_progress is not None:
                on_progress(len(replies), len(requests))

    def _next_line(self, deadline: float, progress: str, request: RewardRequest | None) -> bytes:
        try:
            line = self._channel.next_line(deadline)
        except TimeoutError:
            ending = " but did not echo its end" if request is None else ""
            raise ProgramError(
                f"scored {progress}{ending} within {self._timeout:g} s"
                f" (reward_timeout_seconds){self._unfinished()}",
                request=request,
                advice="It must flush after every line and echo the end marker; raise"
                " reward_timeout_seconds if it needs longer",
            ) from None
        if line is None:
            how, _ = self._how_it_ended()
            raise ProgramError(
                f"{how} after it scored {progress}{self._unfinished()}",
                request=request,
            )
        return line

    def _how_it_ended(self) -> tuple[str, bool]:
        """Called when its stdout has ended: in words, and whether it failed. Ends the group, which
        gives the exit status."""
        exited = self._process.wait_exited(EXIT_PATIENCE_SECONDS)
        status = self._process.end()
        if not exited:
            return "closed its standard output", False
        return f"ended ({describe_exit(status)})", status != 0

    def _unfinished(self) -> str:
        unfinished = self._channel.take_unfinished()
        if not unfinished:
            return ""
        return f"; it wrote without ending the line: {shorten_line(unfinished)}"


def _require_all(replies: dict[int, RewardReply], count: int) -> None:
    missing = [index for index in range(count) if index not in replies]
    if missing:
        raise ProgramError(
            f"ended the batch with {len(replies)} replies for {count} requests; missing are the"
            f" indices {list_indices(missing)}, received were {list_indices(sorted(replies))}",
            advice="Each request needs one reply before the end marker is echoed",
        )


def _duplicate(index: int, replies: dict[int, RewardReply], count: int) -> ProgramError:
    missing = [i for i in range(count) if i not in replies]
    return ProgramError(
        f"sent a second reply with index {index}; expected were the indices"
        f" {list_indices(missing)}, received before were {list_indices(sorted(replies))}"
        if missing
        else f"sent a second reply with index {index} after all {count} requests were answered",
        advice="Each request needs exactly one reply",
    )
