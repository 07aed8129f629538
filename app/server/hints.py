"""What has changed in the store, told to the pages that are open: one thread looks, and for each
listener the newest of each kind of news is kept until it is taken.

SQLite counts the commits of other connections, and asking for that number reads no table. Any
other database is asked for the runs' pulses.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from sqlalchemy.exc import SQLAlchemyError

from app.store.database import Store
from app.store.presence import StoreGoneError
from app.store.queries.changes import Kind, News, Seen, look

SECONDS_BETWEEN_LOOKS = 0.1
SECONDS_BETWEEN_QUERIES = 0.5
_SECONDS_AFTER_A_FAILURE = 2.0
_SECONDS_TO_BEGIN = 5.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Listener:
    """Follows one run, or (None) the list of runs, on the event loop that it was made on. However
    slow its reader is, it holds one piece of news of each kind at most."""

    run_id: int | None
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _waiting: dict[Kind, News] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _ended: bool = False

    async def news(self) -> list[News]:
        """What has come since the last call, at least one; none when it has ended."""
        await self._changed.wait()
        self._changed.clear()
        news = list(self._waiting.values())
        self._waiting.clear()
        return [] if self._ended else news

    def tell(self, news: Sequence[News]) -> None:
        """From any thread."""
        self._call(lambda: self._waiting.update({one.kind: one for one in news}))

    def end(self) -> None:
        """From any thread."""
        self._call(lambda: setattr(self, "_ended", True))

    def _call(self, change: Callable[[], None]) -> None:
        def do() -> None:
            change()
            self._changed.set()

        with suppress(RuntimeError):  # the loop has ended, and the listener with it
            self._loop.call_soon_threadsafe(do)


class Hints:
    """The listeners of a store. The thread starts with the first one and rests without any."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._listeners: list[Listener] = []
        self._condition = threading.Condition()
        self._closed = False
        self._seen: Seen | None = None
        self._complaint = ""
        self.looks = 0
        """How often the store was read."""
        self._thread: threading.Thread | None = None

    @contextmanager
    def listen(self, run_id: int | None) -> Iterator[Listener]:
        listener = Listener(run_id)
        with self._condition:
            if self._closed:
                listener.end()
            elif self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, name="hints", daemon=True)
                self._thread.start()
            self._listeners.append(listener)
            self._condition.notify_all()
        try:
            yield listener
        finally:
            with self._condition:
                self._listeners.remove(listener)

    def begun(self) -> None:
        """Wait until there has been a look: what is written from then on will be told."""
        with self._condition:
            self._condition.wait_for(lambda: self.looks or self._closed, _SECONDS_TO_BEGIN)

    def close(self) -> None:
        """Ends all listeners, so that nothing waits for news any more, and the thread."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        self._end_all()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._closed:
            try:
                with _changes(self._store) as (has_changed, seconds):
                    self._follow(has_changed, seconds)
            except (SQLAlchemyError, sqlite3.Error) as error:
                self._complain(error)
                if isinstance(error, StoreGoneError):
                    self._end_all()  # what the pages show is of a store that is not there
                self._rest(_SECONDS_AFTER_A_FAILURE)

    def _complain(self, error: Exception) -> None:
        """Once for each trouble, however often it is met."""
        words = str(getattr(error, "orig", error))
        if words != self._complaint:
            log.warning("The store could not be looked at; trying again. %s", words)
        self._complaint = words

    def _end_all(self) -> None:
        with self._condition:
            for listener in self._listeners:
                listener.end()

    def _follow(self, has_changed: Callable[[], bool], seconds: float) -> None:
        while self._rest(seconds if self._seen is not None else 0.0):
            if self._seen is not None and not has_changed():
                continue
            with self._condition:
                followed = {one.run_id for one in self._listeners if one.run_id is not None}
            with self._store.read() as session:
                seen, news = look(session, self._seen, followed)
            self._complaint = ""
            self._tell(seen, news)

    def _rest(self, seconds: float) -> bool:
        """Wait, and for as long as nobody listens; false when it is time to end."""
        with self._condition:
            self._condition.wait_for(lambda: self._closed, seconds)
            self._condition.wait_for(lambda: self._closed or self._listeners)
            return not self._closed

    def _tell(self, seen: Seen, news: Sequence[News]) -> None:
        with self._condition:
            self._seen = seen
            self.looks += 1
            self._condition.notify_all()
            for listener in self._listeners:
                own = [one for one in news if one.run_id == listener.run_id]
                if own:
                    listener.tell(own)


@contextmanager
def _changes(store: Store) -> Iterator[tuple[Callable[[], bool], float]]:
    """Whether something may have been written since the last question, and how often to ask."""
    if not store.is_sqlite:
        yield (lambda: True), SECONDS_BETWEEN_QUERIES
        return
    connection = store.engine.raw_connection()
    try:
        cursor = connection.cursor()
        last = None

        def has_changed() -> bool:
            nonlocal last
            before = last
            store.refuse_another()
            cursor.execute("PRAGMA data_version")
            last = cursor.fetchone()
            return last != before

        yield has_changed, SECONDS_BETWEEN_LOOKS
    except sqlite3.Error:
        connection.invalidate()  # nobody else gets it from the pool
        raise
    finally:
        connection.close()
