"""A conversation in a terminal, or with a script at the other end of a pipe."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType

from rich.console import Console
from rich.text import Text

from app.rows import prose
from app.text import neutralise
from trainer.conversation import Conversation, Said
from trainer.errors import DataError, TemplateError
from trainer.rollout.answers import SamplingSettings
from trainer.rollout.voice import Ending

HELP = """\
/system TEXT  begin anew, with TEXT as the system message (alone: without one)
/seed N       draw the next answer with seed N, and each after it with one more
/reset        forget what was said
/exit         leave; so does Ctrl-D
Ctrl-C stops an answer that is being written. A message that begins with / has a space before it."""
LARGEST_SEED = 2**63 - 1
_ENDINGS: dict[Ending, str] = {
    "length": "cut off after {tokens} tokens; --max-new-tokens allows more",
    "context": "cut off: the context of {ctx} tokens is full; /reset empties it, --ctx enlarges it",
    "stopped": "stopped",
}


class CommandError(DataError):
    """A line that begins with / and is no command, or one with a wrong word."""


@dataclass(frozen=True, slots=True)
class Speaker:
    """``label`` stands above the answers where there is more than one speaker."""

    label: str
    conversation: Conversation


@dataclass(slots=True)
class Dialogue:
    """``seed`` is that of the next answer: all speakers answer a message with the same one, and the
    next message with one more. ``interactive`` is with a person, who may stop an answer."""

    speakers: Sequence[Speaker]
    settings: SamplingSettings
    seed: int
    interactive: bool
    _out: Console = field(default_factory=lambda: Console(highlight=False, soft_wrap=True))
    _err: Console = field(
        default_factory=lambda: Console(highlight=False, soft_wrap=True, stderr=True)
    )

    def run(self, lines: Iterator[str]) -> None:
        """Answer each line until they end, or until one says /exit. A script's first message that
        cannot be answered ends it: raises DataError, TemplateError."""
        for line in lines:
            if not line.strip():
                continue
            try:
                if line.startswith("/"):
                    if self._obey(line):
                        return
                else:
                    self._answer(line)
            except (DataError, TemplateError) as error:
                if not self.interactive:
                    raise
                self._note(str(error))

    def _obey(self, line: str) -> bool:
        """Do what the command in ``line`` says; true to leave."""
        command, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        if command == "/system":
            for speaker in self.speakers:
                speaker.conversation.system = rest
            self._forget("The conversation begins anew " + ("with" if rest else "without"))
        elif command == "/seed":
            self.seed = _seed_in(rest)
        elif rest or command not in ("/exit", "/reset", "/help"):
            raise CommandError(
                f"{line.strip()}: there is no such command; /help lists them. To send it as a "
                f"message, put a space before it."
            )
        elif command == "/reset":
            self._forget("")
        elif command == "/help":
            self._note(HELP)
        return command == "/exit"

    def _forget(self, words: str) -> None:
        for speaker in self.speakers:
            speaker.conversation.reset()
        self._note(f"{words} a system message." if words else "The conversation begins anew.")

    def _answer(self, message: str) -> None:
        with _stoppable(self.interactive) as stopped:
            for speaker in self.speakers:
                if stopped():
                    break
                self._let(speaker, message, stopped)
        self.seed = (self.seed + 1) % (LARGEST_SEED + 1)

    def _let(self, speaker: Speaker, message: str, stopped: Callable[[], bool]) -> None:
        if len(self.speakers) > 1:
            (self._out if self.interactive else self._err).print(Text(speaker.label, "bold"))
        writing = _Writing()
        try:
            said = speaker.conversation.say(
                message, self.seed, self.settings, on_text=writing.write, should_stop=stopped
            )
        finally:
            writing.end()
        self._explain(said, speaker)

    def _explain(self, said: Said, speaker: Speaker) -> None:
        """What is not to be seen of the answer itself."""
        ctx = speaker.conversation.partner.ctx
        notes = []
        if said.dropped:
            what = "exchange was" if said.dropped == 1 else f"{said.dropped} exchanges were"
            notes.append(
                f"the oldest {what} left out, as the context of {ctx} tokens is full; --ctx "
                f"enlarges it"
            )
        if words := _ENDINGS.get(said.reply.ending):
            notes.append(words.format(tokens=len(said.reply.tokens), ctx=ctx))
        if not said.reply.text:
            notes.append("the answer is empty, and the message is forgotten")
        if notes:
            self._note(f"({'; '.join(notes)})")
        elif self.interactive:
            self._out.print()

    def _note(self, words: str) -> None:
        """For a person, beside the answers: a script reads only those from standard output."""
        console = self._out if self.interactive else self._err
        with suppress(OSError):
            console.print(
                Text(prose(neutralise(words, keep_newlines=True), console.file), "dim"),
                end="\n\n" if self.interactive else "\n",
            )


def lines_of_a_person() -> Iterator[str]:
    """What is typed at a prompt, with the editing and the history of readline where it is there."""
    with suppress(ImportError):
        import readline  # noqa: F401  - input() uses it once it is loaded
    prompt = "> " if sys.stdout.isatty() else ""
    while True:
        try:
            line = input(prompt)
        except (EOFError, KeyboardInterrupt):
            print()  # off the line of the prompt
            raise
        yield line


def lines_of_a_script() -> Iterator[str]:
    """Standard input line by line, in UTF-8 whatever the locale says."""
    for line in sys.stdin.buffer:
        yield line.decode("utf-8", "replace").rstrip("\r\n")


class _Writing:
    """Writes a model's text as it comes, safe for a terminal. A carriage return waits for what
    follows: with a line feed it is a new line."""

    def __init__(self) -> None:
        self._held = ""

    def write(self, text: str) -> None:
        text = self._held + text
        self._held = "\r" if text.endswith("\r") else ""
        sys.stdout.write(neutralise(text.removesuffix("\r"), keep_newlines=True))
        sys.stdout.flush()

    def end(self) -> None:
        sys.stdout.write(neutralise(self._held) + "\n")
        sys.stdout.flush()


def _seed_in(words: str) -> int:
    digits = words.lstrip("0") or "0"
    # Python does not read a number of any length.
    short = words.isascii() and words.isdecimal() and len(digits) <= len(str(LARGEST_SEED))
    if not short or int(digits) > LARGEST_SEED:
        raise CommandError(f"/seed {words}: a seed is a whole number from 0 to {LARGEST_SEED}.")
    return int(digits)


@contextmanager
def _stoppable(wanted: bool) -> Iterator[Callable[[], bool]]:
    """Inside, the first Ctrl-C is no more than a wish, which what is given tells; the second one
    raises KeyboardInterrupt. Where it is not ``wanted``, the first one does."""
    if not wanted:
        yield lambda: False
        return
    wishes: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        if wishes:
            raise KeyboardInterrupt
        wishes.append(number)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: bool(wishes)
    finally:
        signal.signal(signal.SIGINT, before)
