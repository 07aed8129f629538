"""What was said in the browser's conversations. They live in the server's memory alone."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from app.chat.process import Message, Partners

Phase = Literal["waiting", "loading", "answering", "over"]
"""Of an exchange: others are answered first; the model is read; a voice answers; both have."""

VOICES = ("base", "adapter")
USUAL_ANSWER = 512
"""The most tokens of an answer where nobody says otherwise, as with ``retrograd chat``."""
_ENDINGS = {
    "length": "cut off after {tokens} tokens",
    "context": "cut off: the context of {ctx} tokens is full",
    "stopped": "stopped",
    "end": "",
}


class ChatError(Exception):
    """Something that cannot be said now; ``status`` is that of the HTTP answer."""

    def __init__(self, message: str, status: int = 409) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Draws:
    """How answers are drawn, both voices with the same seed, and the system message before."""

    temperature: float
    top_p: float
    seed: int
    max_new_tokens: int
    system: str = ""


@dataclass(slots=True, eq=False)
class Spoken:
    """A voice's answer as far as it is there. ``note`` says how it ended, where that is not plain;
    ``failed`` that it is why there is no answer."""

    text: str = ""
    note: str = ""
    over: bool = False
    failed: bool = False

    def end(self, note: str, *, failed: bool = False) -> None:
        self.note, self.failed, self.over = note, failed, True

    def end_as(self, done: Message, ctx: int) -> None:
        """As the process says that it ended."""
        notes = [_ENDINGS[done["ending"]].format(tokens=done["tokens"], ctx=ctx)]
        if dropped := done["dropped"]:
            what = "the oldest exchange" if dropped == 1 else f"the oldest {dropped} exchanges"
            notes.append(f"without {what}, which the context of {ctx} tokens has no room for")
        if not self.text:
            notes.append("an empty answer, which is not kept")
        self.end("; ".join(filter(None, notes)))


@dataclass(slots=True, eq=False)
class Exchange:
    """A question, and the answers of the voices in the order of `VOICES`."""

    question: str
    draws: Draws
    answers: list[Spoken] = field(default_factory=lambda: [Spoken() for _ in VOICES])
    phase: Phase = "waiting"
    stopped: bool = False


@dataclass(slots=True, eq=False)
class Chat:
    """A conversation with the run's model and adapter. All of it happens on the event loop, but
    for reading, which may see an answer half-way."""

    run_id: int
    partners: Partners
    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    exchanges: list[Exchange] = field(default_factory=list)
    touched: float = field(default_factory=time.monotonic)
    _readers: set[asyncio.Event] = field(default_factory=set)

    @property
    def busy(self) -> bool:
        return bool(self.exchanges) and self.exchanges[-1].phase != "over"

    @property
    def watched(self) -> bool:
        return bool(self._readers)

    def before(self, exchange: Exchange, voice: int) -> list[tuple[str, str]]:
        """What a voice said and was told before; an empty answer leaves nothing."""
        place = self.exchanges.index(exchange)
        kept = [e for e in self.exchanges[:place] if e.answers[voice].text]
        return [
            pair
            for e in kept
            for pair in (("user", e.question), ("assistant", e.answers[voice].text))
        ]

    def tell(self) -> None:
        """Something has changed: wake whoever reads."""
        self.touched = time.monotonic()
        for reader in self._readers:
            reader.set()

    @contextmanager
    def reading(self) -> Iterator[asyncio.Event]:
        """Inside, the event is set whenever something has changed."""
        reader = asyncio.Event()
        self._readers.add(reader)
        try:
            yield reader
        finally:
            self._readers.discard(reader)
