"""Chat templates: from messages to the text a model reads, with what people typed marked in it."""

from __future__ import annotations

import json
import re
import secrets
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final, Literal, cast

from trainer.chat.messages import Message
from trainer.closing import Closing
from trainer.errors import TemplateError

SECONDS: Final = 5.0
"""Processor time for one conversation."""
CHARACTERS: Final = 4_000_000
"""Length of one rendered conversation."""
MEGABYTES: Final = 512
"""Address space of the process that renders."""


SystemRole = Literal["as it is", "refuse", "merge"]
"""What becomes of a system message: the template gets it, whatever it makes of it; where the
template does not take it, the conversation is refused; or it is put before the first user message,
with an empty line between."""

RESERVED: Final = frozenset(
    (
        *("messages", "add_generation_prompt", "bos_token", "eos_token", "tools"),
        *("raise_exception", "strftime_now"),
        *("cycler", "dict", "joiner", "lipsum", "namespace", "range"),
    )
)
"""Names that have their meaning in every template, and that no variable can take."""


class TemplateLimitError(TemplateError):
    """A template that went over its time or memory; it will do so for other messages too."""


class VariableError(TemplateError):
    """A template variable that is the renderer's own, or that the template never reads."""

    def __init__(self, variable: str, message: str) -> None:
        super().__init__(message)
        self.variable = variable


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a rendered conversation.

    ``user`` is true for the content of a message, whatever its role, and false for what the
    template wrote around it.
    """

    text: str
    user: bool


class ChatTemplate(Closing):
    """A Jinja chat template, rendered in a sandbox inside a process of its own.

    ``bos`` and ``eos`` are the texts of the model's special tokens, and ``name`` says in errors
    where the template comes from. Templates get what Hugging Face's renderer gives them, and among
    that ``strftime_now``: a template that writes today's date into the prompt makes runs on
    different days differ, and `dated` tells that it has done so.

    ``variables`` are further names that the template finds, with JSON's types. ``system`` says what
    becomes of system messages; `merges_system` tells that one was merged.

    `close` ends the process; it also ends with the object.

    Raises:
        TemplateError: the source is not a Jinja template.
        VariableError: a variable is not to be set, or is never read.
    """

    def __init__(
        self,
        source: str,
        *,
        bos: str,
        eos: str,
        name: str,
        variables: Mapping[str, Any] | None = None,
        system: SystemRole = "as it is",
        seconds: float = SECONDS,
        characters: int = CHARACTERS,
    ) -> None:
        self.source = source
        self.name = name
        self.eos = eos
        self.reads: tuple[str, ...] = ()
        self._sets: frozenset[str] = frozenset()
        self.dated = False
        self.merges_system = False
        self._system = system
        self._takes_system: bool | TemplateError | None = None
        self._seconds = seconds
        self._characters = characters
        own = {"bos_token": bos, "eos_token": eos, "tools": None, "documents": None}
        self._variables = {**own, **(variables or {})}
        self._lock = threading.Lock()
        self._process: _Process | None = None
        try:
            self._rendered([])
            for variable in variables or {}:
                self._see_variable(variable)
        except BaseException:
            self.close()
            raise

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> list[Span]:
        """The text that ``messages`` become, cut at the borders of what people typed.

        The conversation is rendered twice, once with each content between marks that nobody can
        guess. White space around a content stays outside of its marks, because templates trim. The
        cut counts when the marked text without its marks is the plain one. Where a template alters
        what it is given, so that this fails, the whole text is one span with ``user`` false;
        `trainer.chat.prompts` looks after that case.

        Raises:
            TemplateError: the template refuses the messages, in its own words.
            TemplateLimitError: it takes too much time or memory.
        """
        # Private-use characters: no template looks for them, and changing case leaves them alone.
        begin, end = (_mark() for _ in range(2))
        marked = [Message(m.role, _between(m.content, begin, end)) for m in messages]
        try:
            text, traced = self.texts([(m, add_generation_prompt) for m in (messages, marked)])
        except TemplateLimitError:
            raise
        except TemplateError:
            # The template may dislike the marks alone, say because a content became too long.
            (text,) = self.texts([(messages, add_generation_prompt)])
            return [Span(text, user=False)]
        return _cut(text, traced, begin, end) or [Span(text, user=False)]

    def texts(self, conversations: Sequence[tuple[Sequence[Message], bool]]) -> list[str]:
        """The text alone of each of ``conversations``, which are messages and whether the
        generation prompt is added. Raises as `render` does."""
        return self._rendered([(self._as_taken(m), prompt) for m, prompt in conversations])

    def own_variables(self) -> list[str]:
        """The variables that the template is made to be given, in alphabetical order."""
        return [name for name in self.reads if name not in RESERVED | self._sets]

    def _see_variable(self, variable: str) -> None:
        if variable in RESERVED:
            raise VariableError(
                variable, f"{variable} has its meaning in every chat template and cannot be set"
            )
        if variable not in self.reads:
            own = ", ".join(self.own_variables())
            raise VariableError(
                variable,
                f"the chat template of {self.name} never reads {variable}; what it reads: "
                f"{own or 'no variables'}",
            )

    def _as_taken(self, messages: Sequence[Message]) -> Sequence[Message]:
        """``messages`` in the form that the template gets, by what becomes of system messages."""
        if self._system == "as it is" or not messages or messages[0].role != "system":
            return messages
        if self._takes_system is None:
            self._takes_system = self._probe_system()
        if self._takes_system is True:
            return messages
        if self._system == "refuse":
            words = (
                f"the chat template of {self.name} leaves out system messages"
                if self._takes_system is False
                else str(self._takes_system)
            )
            raise TemplateError(
                f"{words}. It takes no system message: write that text into the first user "
                "message, or set merge_system = true in [model], which puts it there"
            )
        system, *rest = messages
        if not rest or rest[0].role != "user":
            return messages
        self.merges_system = True
        first = replace(rest[0], content=f"{system.content}\n\n{rest[0].content}")
        return [first, *rest[1:]]

    def _probe_system(self) -> bool | TemplateError:
        """Whether the text depends on a system message, or how the template refuses it."""
        user = Message("user", "x")
        talks = [([Message("system", letter), user], True) for letter in ("y", "z")]
        try:
            one, other = self._rendered(talks)
        except TemplateLimitError:
            raise
        except TemplateError as error:
            return error
        return one != other

    def _rendered(self, conversations: Sequence[tuple[Sequence[Message], bool]]) -> list[str]:
        request = {
            "source": self.source,
            "variables": self._variables,
            "conversations": [
                [{"role": message.role, "content": message.content} for message in messages]
                for messages, _ in conversations
            ],
            "generation": [generation for _, generation in conversations],
            "seconds": self._seconds * max(1, len(conversations)),
            "characters": self._characters,
        }
        with self._lock:
            reply = self._ask(request)
        if "texts" in reply:
            self.reads, self._sets = tuple(reply["reads"]), frozenset(reply["sets"])
            self.dated |= bool(reply["dated"])
            return cast("list[str]", reply["texts"])
        kind = TemplateLimitError if reply.get("limit") else TemplateError
        raise kind(f"the chat template of {self.name} failed: {reply['error']}")

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        # The process is put back only after its answer was read: after an interrupt, the next
        # request must not find the answer to this one.
        process, self._process = self._process or _Process(), None
        try:
            reply = process.ask(request)
        except (EOFError, BrokenPipeError):
            status, words = process.ended()
        except BaseException:
            process.close()
            raise
        else:
            self._process = process
            return reply
        if status == -signal.SIGPROF:
            seconds = request["seconds"]
            return {"error": f"it did not end within {seconds:g} s of computing", "limit": True}
        return {"error": f"its process ended with status {status}: {words[-400:]}", "limit": True}

    def close(self) -> None:
        with self._lock:
            if self._process is not None:
                self._process.close()
                self._process = None


class _Process:
    """One running `trainer.chat.renderer`."""

    def __init__(self) -> None:
        command = [
            sys.executable,
            "-P",
            str(Path(__file__).with_name("renderer.py")),
            str(MEGABYTES),
        ]
        self._popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            start_new_session=True,
        )
        self._end = weakref.finalize(self, _finish, self._popen)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        to_process, answers = self._pipes()
        to_process.write(json.dumps(request) + "\n")
        to_process.flush()
        line = answers.readline()
        if not line:
            raise EOFError
        return cast("dict[str, Any]", json.loads(line))

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        return self._popen.stdin, self._popen.stdout

    def ended(self) -> tuple[int, str]:
        """The status of a process that ended by itself, and its words on standard error."""
        self._end.detach()
        _, words = self._popen.communicate()
        return self._popen.returncode, words

    def close(self) -> None:
        self._end()


def _finish(popen: subprocess.Popen[str]) -> None:
    popen.kill()
    popen.communicate()


def _mark() -> str:
    return "".join(chr(0xF0000 + byte) for byte in secrets.token_bytes(12))


def _between(content: str, begin: str, end: str) -> str:
    core = content.strip()
    if not core:
        return content
    start = content.index(core)
    return content[:start] + begin + core + end + content[start + len(core) :]


def _cut(text: str, traced: str, begin: str, end: str) -> list[Span] | None:
    """The spans of ``text``, or None where the marks did not come through whole."""
    spans, user = [], False
    for part in re.split(f"({begin}|{end})", traced):
        if part in (begin, end):
            if user is (part == begin):
                return None
            user = part == begin
        elif part:
            spans.append(Span(part, user))
    whole = "".join(span.text for span in spans) == text
    return spans if whole and not user else None
