"""A program of the user's as the judge: a line of JSON in, a line of JSON out."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from trainer.judge.questions import (
    Asked,
    Exchange,
    Failure,
    JudgeError,
    JudgeStopped,
    Listener,
    Progress,
    Question,
    Reply,
    ShouldStop,
)
from trainer.judge.replies import BadReplyError, read_scores
from trainer.reward.channel import Channel
from trainer.reward.process import ProgramProcess, require_command
from trainer.reward.protocol import decode_line, encode_line
from trainer.reward.report import ProgramError, describe_exit, shorten, shorten_line

_STDERR_CHARS = 500


class JudgeProgram:
    """Starts the program anew for each request, and ends its input after the line.

    So a program may read a line or all of its input, and none has to flush. Requests go out one
    after the other: a program may fill the machine.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        folder: Path,
        timeout: float,
        listener: Listener | None,
    ) -> None:
        """Raises JudgeError when there is no such program."""
        self._command = tuple(command)
        self._folder = folder
        self._timeout = timeout
        self._listener = listener
        try:
            require_command(self._command, folder)
        except ProgramError as failure:
            advice = f" {failure.advice}." if failure.advice else ""
            shown = json.dumps(self._command, ensure_ascii=False)
            raise JudgeError(
                f"The judge (command = {shown}, run in {folder}) {failure.problem}.{advice}"
            ) from failure

    def size(self, question: Question) -> int:
        return len(json.dumps(_fields(question), ensure_ascii=False))

    def ask(
        self,
        questions: Sequence[Question],
        on_progress: Progress | None = None,
        should_stop: ShouldStop | None = None,
    ) -> Asked:
        replies: list[Reply | Failure] = []
        latencies = []
        for question in questions:
            _stop_if_wished(should_stop)
            began = time.monotonic()
            replies.append(self._ask_one(question, should_stop))
            latencies.append(time.monotonic() - began)
            if on_progress is not None:
                on_progress(len(replies), len(questions))
        return Asked(replies, latencies, saved=0)

    def _ask_one(self, question: Question, should_stop: ShouldStop | None) -> Reply | Failure:
        began = time.monotonic()
        received = problem = None
        reply: Reply | Failure
        try:
            sent = encode_line(_fields(question))
            received = self._run(sent, should_stop)
            reply = read_scores(decode_line(received), question)
        except (ProgramError, BadReplyError) as error:
            problem = _describe(error)
            reply = Failure(problem)
        if self._listener is not None:
            shown = json.dumps(_fields(question), ensure_ascii=False)
            answer = None if received is None else received.decode("utf-8", "backslashreplace")
            seconds = time.monotonic() - began
            self._listener(Exchange(question.label, shown, answer, problem, seconds))
        return reply

    def _run(self, sent: bytes, should_stop: ShouldStop | None) -> bytes:
        """The line with which the program answers."""
        deadline = time.monotonic() + self._timeout
        process = ProgramProcess(self._command, self._folder)
        try:
            with closing(Channel(process, None)) as channel:
                channel.send(sent)
                channel.end_input()
                return self._converse(process, channel, deadline, should_stop)
        except TimeoutError:
            problem = f"did not answer and end within {self._timeout:g} s (timeout_secs)"
            raise ProgramError(problem + _stderr(process)) from None
        finally:
            process.end()

    def _converse(
        self,
        process: ProgramProcess,
        channel: Channel,
        deadline: float,
        should_stop: ShouldStop | None,
    ) -> bytes:
        lines = []
        while (
            line := channel.next_line(deadline, lambda: _stop_if_wished(should_stop))
        ) is not None:
            lines.append(line)
        if unfinished := channel.take_unfinished():
            lines.append(unfinished)
        if not process.wait_exited(max(0.0, deadline - time.monotonic())):
            raise TimeoutError
        status = process.end()
        if status != 0:
            raise ProgramError(f"ended ({describe_exit(status)})" + _stderr(process))
        if len(lines) != 1:
            raise ProgramError(
                f"wrote {len(lines)} lines where one was expected" + _stderr(process),
                line=lines[1] if lines else None,
            )
        return lines[0]


def _fields(question: Question) -> dict[str, object]:
    return {
        "prompt": question.messages[-1].content,
        "messages": [{"role": m.role, "content": m.content} for m in question.messages],
        "rubric": question.rubric,
        "answers": [
            {"id": name, "completion": text}
            for name, text in zip(question.ids, question.texts, strict=True)
        ],
    }


def _describe(error: ProgramError | BadReplyError) -> str:
    if isinstance(error, BadReplyError):
        return f"its reply cannot be used: {error}"
    line = "" if error.line is None else f", such as: {shorten_line(error.line)}"
    return f"the program {error.problem}{line}"


def _stderr(process: ProgramProcess) -> str:
    text = process.stderr_tail().strip()
    return (
        f'; its stderr ends with "{shorten(text[-_STDERR_CHARS:], _STDERR_CHARS)}"' if text else ""
    )


def _stop_if_wished(should_stop: ShouldStop | None) -> None:
    if should_stop is not None and should_stop():
        raise JudgeStopped
