"""The thread that writes a run into the store, and hears what people ask of it."""

from __future__ import annotations

import shlex
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import get_args

from sqlalchemy import select, update
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from app.store.database import Store, reason
from app.store.digest import Digest
from app.store.inbox import EventTold, Inbox, Told
from app.store.insert import Ids, update_run, write_rows
from app.store.models import Request, Run
from app.store.presence import StoreGoneError, damaged
from app.store.rows import Row, Rows
from app.store.unfinished import Place
from app.text import counted
from trainer.monitor import Event, Stage
from trainer.monitor import Request as Wish

_TURN_SECONDS = 0.15
_PROGRESS_SECONDS = 0.3
_HEARTBEAT_SECONDS = 2.0
_ASK_SECONDS = 0.4
_LOCK_SECONDS = 1.0
_LOCK_MATTERS_SECONDS = 10.0
"""A lock that is held longer is worth a word."""
_RESCUE_SECONDS = 30.0
"""Between attempts: a copy may take long, and a disk that has no room for it has none soon."""
_ROWS_AT_ONCE = 5000
_BYTES_AT_ONCE = 4 << 20
_PAUSES = (0.1, 0.2, 0.5, 1.0)
_WISHES: tuple[Wish, ...] = get_args(Wish)
_MAY_PASS = (OperationalError, InterfaceError)
"""A lock, a full disk, a server that restarts: the same rows may be written later."""


class Writer(threading.Thread):
    """Writes what waits in ``inbox``, in order and in transactions of a bounded size.

    Where the database cannot be written to, the rows wait; `give_up` ends that. ``progress`` is
    where the update stands, and only its last value counts.
    """

    def __init__(
        self, store: Store, place: Place, inbox: Inbox, digest: Digest, lost_before: int
    ) -> None:
        super().__init__(name=f"store of run {place.run_id}", daemon=True)
        self.progress: tuple[Stage, int, int] | None = None
        self.stop_asked = False
        self.failure = ""
        """Why rows were lost, as the database says it."""
        self.failing = False
        """Whether the last attempt failed, and is made again."""
        self.news: deque[str] = deque()
        """What the person who waits is to hear."""
        self.on_checkpoint: Callable[[float], None] = lambda _: None
        """Lists the checkpoints; it is given the seconds that it may wait for other writers."""
        self._store, self._place, self._inbox, self._digest = store, place, inbox, digest
        self._lost_before = lost_before
        self._lost_told = 0
        self._ids = Ids()
        self._progress_written: tuple[Stage, int, int] | None = None
        self._next_progress = self._next_beat = self._next_ask = 0.0
        self._gave_up = threading.Event()
        self._hopeless = False
        self._list_due = False
        self._asked: set[str] = set()
        self._asking = threading.Lock()
        self._next_rescue = 0.0
        self._in_trouble = False
        self._trouble_since = 0.0

    def run(self) -> None:
        while True:
            told = self._inbox.take(rows=_ROWS_AT_ONCE, size=_BYTES_AT_ONCE, wait=_TURN_SECONDS)
            try:
                self._keep(told)
            except Exception as error:  # noqa: BLE001  whatever it is, the rows to come are kept
                self._fail(error, sum(one.rows for one in told))
            finally:
                self._inbox.settle(len(told))
            self._look_around()
            if not told and self._inbox.is_closed:
                return

    def requested(self) -> frozenset[Wish]:
        """What people asked for since the last call, apart from stopping."""
        with self._asking:
            asked, self._asked = self._asked, set()
        return frozenset(wish for wish in _WISHES if wish in asked)

    def give_up(self) -> None:
        """What cannot be written at the next attempt is lost."""
        self._gave_up.set()

    def _keep(self, told: Sequence[Told]) -> None:
        if not told:
            return
        batch = [rows for rows in map(self._digested, told) if rows is not None]
        if self._hopeless or not self._try_for_long(batch):
            self._hopeless = True
            self._inbox.lose(sum(rows.count for rows in batch))
        if any(isinstance(t, EventTold) and t.event.code == "checkpoint" for t in told):
            self._list_due = True

    def _digested(self, told: Told) -> Rows | None:
        try:
            return self._digest.rows(told)
        except Exception as error:  # noqa: BLE001  one thing that cannot be kept ends nothing
            self._fail(error, told.rows)
            return None

    def _try_for_long(self, batch: Sequence[Rows]) -> bool:
        attempt = 0
        while True:
            last = self._gave_up.is_set()
            try:
                self._write(batch)
            except _MAY_PASS as error:
                self.failing = True
                self._meet(error)
                if isinstance(error, StoreGoneError) and self._rescue():
                    continue
                if last:
                    return False
                self._gave_up.wait(_PAUSES[min(attempt, len(_PAUSES) - 1)])
                attempt += 1
            except Exception as error:  # noqa: BLE001
                if damaged(error):
                    self._end_in_damage(error)
                    return False
                if len(batch) > 1:
                    return self._one_by_one(batch)
                self._fail(error, batch[0].count)
                return True
            else:
                self.failing = False
                self._end_trouble()
                return True

    def _one_by_one(self, batch: Sequence[Rows]) -> bool:
        """Something among the rows cannot be written; the others can."""
        for index, rows in enumerate(batch):
            if not self._try_for_long([rows]):
                self._inbox.lose(-sum(r.count for r in batch[:index]))
                return False
        return True

    def _fail(self, error: Exception, rows: int) -> None:
        said = reason(error) if isinstance(error, DBAPIError) else str(error)
        self.failure = f"{type(error).__name__}: {said}"
        self._inbox.lose(rows)

    def _write(self, batch: Sequence[Rows]) -> None:
        ids, lost = self._ids.copy(), self._inbox.lost
        values: Row = {}
        for rows in batch:
            values |= rows.run
        progress = self.progress
        if "status" not in values and progress != self._progress_written:
            values |= _progress_columns(progress)
        if lost > self._lost_told:
            values["lost"] = self._lost_before + lost
            batch = [*batch, self._loss(lost)]
        with self._store.write(_LOCK_SECONDS) as session:
            write_rows(session, self._place, batch, ids)
            now = time.time()
            update_run(session, self._place.run_id, values | {"heartbeat_at": now}, pulse=True)
        self._ids.take(ids)
        self._progress_written, self._lost_told = progress, lost
        self._next_beat = time.monotonic() + _HEARTBEAT_SECONDS

    def _loss(self, lost: int) -> Rows:
        words = f"{counted(lost, 'row')} could not be stored; training went on."
        if self.failure:
            words += f" The database said: {self.failure}."
        event = Event("warning", "store_loss", words, data={"rows": lost})
        return self._digest.rows(EventTold(time.time(), event))

    def _look_around(self) -> None:
        if self._hopeless:
            return
        now = time.monotonic()
        news = self.progress != self._progress_written or self._inbox.lost > self._lost_told
        try:
            if news and (now >= self._next_progress or self._inbox.is_closed):
                self._next_progress = now + _PROGRESS_SECONDS
                self._write([])
            elif now >= self._next_beat:
                self._next_beat = now + _HEARTBEAT_SECONDS
                beat = {"heartbeat_at": time.time()}
                with self._store.write(_LOCK_SECONDS) as session:
                    update_run(session, self._place.run_id, beat, pulse=False)
            if now >= self._next_ask:
                self._next_ask = now + _ASK_SECONDS
                self._ask()
            if self._list_due:
                self.on_checkpoint(_LOCK_SECONDS)
                self._list_due = False
        except StoreGoneError:
            self._rescue()
        except Exception as error:  # noqa: BLE001  the next turn does it again
            if damaged(error):
                self._end_in_damage(error)
            else:
                self._meet(error)
        else:
            if not self.failing:
                self._end_trouble()

    def _meet(self, error: Exception) -> None:
        """The database cannot be written to. Said once when it begins: at once or, where another
        program only holds a lock, when that takes long."""
        self.failure, now = reason(error), time.monotonic()
        self._trouble_since = self._trouble_since or now
        short = "lock" in self.failure and now - self._trouble_since < _LOCK_MATTERS_SECONDS
        if short or self._in_trouble or isinstance(error, StoreGoneError):
            return
        self._in_trouble = True
        self._tell(
            "store_failing",
            f"The store {self._store.place} cannot be written to ({self.failure}). Training goes "
            "on, and what comes waits in memory until it can be; when that is full, answers are "
            "lost to the store. Make room there, or mend what keeps it.",
        )

    def _end_in_damage(self, error: Exception) -> None:
        """The file is no database any more. What is written into it may seem to be kept, and
        nobody could read it: nothing more is written."""
        self.failure = reason(error)
        if not self._hopeless:
            self._hopeless = True
            self._tell(
                "store_damaged",
                f"The store {self._store.place} is damaged ({self.failure}). Training goes on, and "
                "nothing more of this run is kept there. Put a backup of the store in its place "
                "when the run has ended; the adapter and the files that the run writes are not "
                "touched by this.",
            )

    def _end_trouble(self) -> None:
        self._trouble_since = 0.0
        if not self._in_trouble:
            return
        self._in_trouble = False
        lost = self._inbox.lost
        words = f"{lost} rows have been lost so far" if lost else "nothing was lost"
        place = self._store.place
        self._tell("store_again", f"The store {place} can be written to again: {words}.")

    def _rescue(self) -> bool:
        """The store's file is gone: go on in a copy of it, which is told; whether there is one."""
        if time.monotonic() < self._next_rescue:
            return False
        self._next_rescue = time.monotonic() + _RESCUE_SECONDS
        place = self._store.place
        gone = (
            f"The store {place} was deleted, emptied, renamed or replaced while this run wrote "
            "into it"
        )
        try:
            saved = self._store.rescue()
        except (OSError, sqlite3.Error, DBAPIError) as error:
            why = reason(error) if isinstance(error, OSError | DBAPIError) else str(error)
            if not self._in_trouble:
                self._in_trouble = True
                self._tell(
                    "store_failing",
                    f"{gone}, and a copy beside it cannot be made ({why}). Training goes on; make "
                    "room there, or what comes from here on is lost to the store.",
                )
            return False
        words = (
            f"{gone}. All that it held is in {saved} now, and the run is recorded there from here "
            f"on: look at it with --store {shlex.quote(str(saved))}, or move that file to the old "
            "place when the run has ended."
        )
        self._tell("store_gone", words)
        return True

    def _tell(self, code: str, words: str) -> None:
        """To the person who waits, and to the journal as soon as that can be written."""
        self.news.append(words)
        self._inbox.put(EventTold(time.time(), Event("warning", code, words)))

    def _ask(self) -> None:
        """Look for requests. They count as handled once they are seen here: nothing that ends this
        process leaves them for its successor."""
        waiting = select(Request.id, Request.kind).where(
            Request.run_id == self._place.run_id, Request.handled_at.is_(None)
        )
        with self._store.read() as session:
            found = session.execute(waiting).all()
        if not found:
            return
        kinds = {kind for _, kind in found}
        with self._asking:
            self._asked |= kinds - {"stop"}
        self.stop_asked = self.stop_asked or "stop" in kinds
        numbers = [number for number, _ in found]
        with self._store.write(_LOCK_SECONDS) as session:
            session.execute(
                update(Request).where(Request.id.in_(numbers)).values(handled_at=time.time())
            )
            if "stop" in kinds:
                # Here, and only of a run that has not ended: its end may be written at any moment.
                session.execute(
                    update(Run)
                    .where(Run.id == self._place.run_id, Run.status == "running")
                    .values(status="stopping", pulse=Run.pulse + 1)
                )


def _progress_columns(progress: tuple[Stage, int, int] | None) -> Row:
    if progress is None:
        return {}
    stage, done, total = progress
    return {"stage": stage, "stage_done": done, "stage_total": total}
