"""One answer at a time for the whole server: conversations wait in line, and one process answers.

The process holds the model and adapter that were asked last. It ends when nobody looks on any more,
after some minutes without a question, and with the server.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict

from app.chat.conversations import Chat, ChatError, Draws, Exchange
from app.chat.process import Answering, Message, Partners

IDLE_SECONDS = 180.0
"""How long the process waits for the next question."""
LEFT_SECONDS = 3.0
"""How long a page may be away: it may only be loaded anew."""
MOST_CHATS = 64
MOST_EXCHANGES = 200
MOST_WAITING = 16


class Desk:
    """All conversations of a server. Its methods are called on the event loop, which none of them
    but `close` holds up; `find` and `close` from any thread."""

    def __init__(self, idle_seconds: float = IDLE_SECONDS) -> None:
        self._idle_seconds = idle_seconds
        self._chats: dict[str, Chat] = {}
        self._turn = asyncio.Lock()
        self._waiting: list[Exchange] = []
        self._answering: Answering | None = None
        self._dismissed: Answering | None = None
        self._starting = threading.Lock()
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._numbers = itertools.count(1)
        self._number = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.closed = False

    def find(self, chat_id: str) -> Chat | None:
        return self._chats.get(chat_id)

    def worker(self) -> int | None:
        """The pid of the process that answers, where there is one."""
        return self._answering.pid if self._answering and self._answering.alive else None

    def open(self, run_id: int, partners: Partners) -> Chat:
        """A new conversation, for a question that is then asked. When there are too many, the one
        that was silent for longest gives way to it, of those that no page shows where there are
        such. Raises ChatError where all of them are being answered, or no question is taken."""
        self._refuse_more()
        if len(self._chats) >= MOST_CHATS:
            quiet = [chat for chat in self._chats.values() if not chat.busy]
            silent = [chat for chat in quiet if not chat.watched] or quiet
            if not silent:
                raise ChatError("Too many conversations are open. Try again in a moment.", 503)
            del self._chats[min(silent, key=lambda chat: chat.touched).id]
        chat = Chat(run_id, partners)
        self._chats[chat.id] = chat
        return chat

    def ask(self, chat: Chat, question: str, draws: Draws) -> asyncio.Task[None]:
        """Put a question in line; the task ends with its answers. Raises ChatError."""
        self._refuse_more()
        if chat.busy:
            raise ChatError("The answers to the last message are still being written.")
        if len(chat.exchanges) >= MOST_EXCHANGES:
            raise ChatError(f"A conversation has at most {MOST_EXCHANGES} messages. Begin anew.")
        exchange = Exchange(question, draws)
        chat.exchanges.append(exchange)
        self._waiting.append(exchange)
        chat.tell()
        return self._keep(asyncio.get_running_loop().create_task(self._attend(chat, exchange)))

    def _refuse_more(self) -> None:
        """Raises ChatError while no question is taken."""
        if self.closed:
            raise ChatError("The server is about to end.", 503)
        if len(self._waiting) >= MOST_WAITING:
            raise ChatError("Too many conversations wait for an answer. Try again later.", 503)

    def ahead(self, exchange: Exchange) -> int:
        """How many are answered before this one."""
        return self._waiting.index(exchange) if exchange in self._waiting else 0

    def stop(self, chat: Chat) -> None:
        """Let the answers that are being written end where they are."""
        if not chat.busy:
            return
        exchange = chat.exchanges[-1]
        exchange.stopped = True
        if exchange.phase == "waiting":
            self._leave(exchange)
            self._end(chat, exchange, "stopped")
        elif exchange.phase == "loading":
            # The model is being read, which nothing but the end of the process cuts short.
            self._dismiss()
        elif self._answering is not None:
            self._aside(self._answering.send, {"stop": self._number})

    def left(self, chat: Chat) -> None:
        """A page has gone. Where no other one shows the conversation, and none comes back, nobody
        wants its answers; and the process ends with the last page."""
        loop = asyncio.get_running_loop()
        loop.call_later(LEFT_SECONDS, self._see_whether_alone, chat)

    def unread(self, chat: Chat) -> None:
        """Its answers are whole. Where nobody has come to read them soon, the process ends."""
        asyncio.get_running_loop().call_later(LEFT_SECONDS, self._rest_unless_wanted, chat)

    def close(self) -> None:
        """End everything: open streams, and the process, for whose end it waits."""
        self.closed = True
        for chat in list(self._chats.values()):
            chat.tell()
        with self._starting:
            self._dismiss()
            self._await_dismissed()

    def _see_whether_alone(self, chat: Chat) -> None:
        if chat.watched:
            return
        self.stop(chat)
        self._rest_unless_wanted(chat, stopped=True)

    def _rest_unless_wanted(self, chat: Chat, *, stopped: bool = False) -> None:
        """``stopped``: the conversation itself wants no answer any more."""
        ones = (one for one in self._chats.values() if not (stopped and one is chat))
        if not any(one.watched or one.busy for one in ones):
            self._dismiss()

    async def _attend(self, chat: Chat, exchange: Exchange) -> None:
        try:
            async with self._turn:
                if not exchange.stopped and not self.closed:
                    self._hold(None)
                    await self._answer(chat, exchange)
        except ChatError as error:
            unwanted = exchange.stopped or self.closed
            self._end(chat, exchange, "stopped" if unwanted else str(error))
        finally:
            self._end(chat, exchange, "stopped")
            self._leave(exchange)
            if not self._turn.locked():
                self._hold(self._idle_seconds)

    def _leave(self, exchange: Exchange) -> None:
        """Out of the line, in which the others move up."""
        if exchange in self._waiting:
            self._waiting.remove(exchange)
            for chat in self._chats.values():
                chat.tell()

    async def _answer(self, chat: Chat, exchange: Exchange) -> None:
        exchange.phase = "loading"
        chat.tell()
        answering = await self._ready(chat.partners, exchange)
        exchange.phase = "answering"
        chat.tell()
        for voice, spoken in enumerate(exchange.answers):
            if exchange.stopped:
                break
            self._number = next(self._numbers)
            question = {
                "id": self._number,
                "voice": voice,
                "messages": chat.before(exchange, voice),
                "text": exchange.question,
                **asdict(exchange.draws),
            }
            await asyncio.to_thread(answering.send, question)
            while not spoken.over:
                message = await self._next()
                if message.get("id") != self._number:
                    continue
                if message["kind"] == "text":
                    spoken.text += message["text"]
                elif message["kind"] == "done":
                    spoken.end_as(message, chat.partners.ctx)
                else:
                    spoken.end(message["message"], failed=True)
                chat.tell()

    async def _ready(self, partners: Partners, exchange: Exchange) -> Answering:
        """The process, with the model and the adapter of this conversation. Raises ChatError, also
        where ``exchange`` is stopped meanwhile."""
        current = self._answering
        if current is not None and current.alive and current.partners == partners:
            return current
        self._dismiss()
        loop, messages = asyncio.get_running_loop(), asyncio.Queue[Message]()
        self._messages = messages

        def tell(message: Message) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(messages.put_nowait, message)

        answering = await asyncio.to_thread(self._start, partners, tell)
        if exchange.stopped:  # before there was a process to end
            self._dismiss()
        while (await self._next())["kind"] != "ready":
            pass
        return answering

    def _start(self, partners: Partners, tell: Callable[[Message], None]) -> Answering:
        """A process, once the one before has ended and left its memory. Raises ChatError."""
        with self._starting:
            if self.closed:
                raise ChatError("The server is about to end.", 503)
            self._await_dismissed()
            try:
                self._answering = Answering(partners, tell)
            except OSError as error:
                raise ChatError(
                    f"The process that answers cannot be started: {error}. Free memory, processes "
                    f"or open files on the server's machine, and send the message again."
                ) from error
            return self._answering

    async def _next(self) -> Message:
        """The next message of the process. Raises ChatError where it has none to send any more."""
        message = await self._messages.get()
        if message["kind"] in ("failed", "gone"):
            self._dismiss()
            raise ChatError(message["message"])
        return message

    def _end(self, chat: Chat, exchange: Exchange, note: str) -> None:
        """Mark what has not ended yet; once over, nothing changes."""
        for spoken in exchange.answers:
            if not spoken.over:
                spoken.end(note, failed=note != "stopped")
        if exchange.phase != "over":
            exchange.phase = "over"
            chat.tell()

    def _hold(self, seconds: float | None) -> None:
        """Let the process wait for so long; None: as long as it takes."""
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = None if seconds is None else loop.call_later(seconds, self._dismiss)

    def _dismiss(self) -> None:
        answering, self._answering = self._answering, None
        if answering is not None:
            answering.kill()
            self._dismissed = answering

    def _await_dismissed(self) -> None:
        """Holds up the thread that calls it."""
        if self._dismissed is not None:
            self._dismissed.close()
            self._dismissed = None

    def _aside(self, function: Callable[[Message], None], message: Message) -> None:
        """Call it without waiting for it."""
        self._keep(asyncio.get_running_loop().create_task(asyncio.to_thread(function, message)))

    def _keep(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
