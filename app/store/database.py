"""The database: where it is, how it is opened, and sessions over it."""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Self

from sqlalchemy import Connection, Engine, create_engine, event, select
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from app.store.errors import StoreError
from app.store.models import Identity
from app.store.presence import Presence, rescue
from app.store.urls import has_file, hide_secrets, url_of, without_secrets

BUSY_SECONDS = 10.0
"""How long a writer waits for another one before it gives up."""
VARIABLE = "RETROGRAD_STORE"
_WAL_BYTES = 32 << 20
_WRITING = "retrograd_writing"
_WAIT = "retrograd_wait"


class Store:
    """An open database. Threads may share it; each session belongs to one of them."""

    def __init__(self, engine: Engine) -> None:
        self._use(engine)

    def _use(self, engine: Engine) -> None:
        self.engine = engine
        self._presence: Presence | None = None
        self._writer = engine.execution_options(**{_WRITING: True})
        if self.is_sqlite and has_file(engine.url):
            self._presence = Presence.of(Path(self.place))
            self._presence.guard(engine)

    @classmethod
    def open(cls, url: str | None = None) -> Self:
        """The store at ``url`` (a SQLAlchemy URL, or a path of an SQLite file), else at
        ``RETROGRAD_STORE``, else in the user's data folder. It is made where there is none, and
        brought to the present schema where it is of an earlier retrograd.

        Raises StoreError where that cannot be done.
        """
        from app.store.migrate import migrate

        place = url or os.environ.get(VARIABLE) or str(default_path())
        shown = hide_secrets(place)
        try:
            shown = shown_url(place)
            make_folder(place)
            migrate(place, shown)
            return cls(engine_for(place))
        except (ArgumentError, ValueError, NoSuchModuleError, ModuleNotFoundError) as error:
            raise StoreError(
                f"{shown}: is no store that retrograd can open ({hide_secrets(str(error))}). Give "
                "a path of a file, "
                "or a URL such as postgresql+psycopg://user@host/name."
            ) from error
        except (DBAPIError, OSError) as error:
            raise StoreError(f"The store {shown} cannot be opened: {reason(error)}.") from error

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    @property
    def place(self) -> str:
        """The URL without a password, or the file's path."""
        if self.is_sqlite:
            return self.engine.url.database or ":memory:"
        return without_secrets(self.engine.url)

    @cached_property
    def identity(self) -> str:
        """A name that this store has under whatever address it is opened, and no other one has: of
        a file that was copied, each copy has its own. Raises DBAPIError and OSError."""
        with self.read() as session:
            name = session.scalars(select(Identity.id)).one()
        if self.is_sqlite and has_file(self.engine.url):
            state = Path(self.place).stat()
            name += f".{state.st_dev:x}.{state.st_ino:x}"
        return name

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session that sees one state of the database; nothing in it is kept."""
        with Session(self.engine, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def write(self, wait: float = BUSY_SECONDS) -> Iterator[Session]:
        """One short transaction, kept when the block ends well. On SQLite it is the only one that
        writes, from its first statement on. On PostgreSQL others may write at the same time: what
        was read is sure to be so still only where it was read ``with_for_update``. Others are
        waited for ``wait`` seconds; raises OperationalError after that."""
        engine = self._writer.execution_options(**{_WAIT: wait})
        with Session(engine, expire_on_commit=False) as session, session.begin():
            yield session

    def refuse_another(self) -> None:
        """Raises StoreGoneError where the store's file is not the one any more that was opened,
        which every session asks by itself."""
        if self._presence is not None:
            self._presence.refuse_another()

    def rescue(self) -> Path:
        """Where the file of the store is gone (StoreGoneError), copy what it held into a new one
        beside its place, and be the store of that; its path. Raises as `presence.rescue`."""
        # The identity stays the one that it had: this process is known by it elsewhere.
        gone = self.engine
        target = rescue(gone, Path(self.place))
        self._use(engine_for(str(target)))
        gone.dispose()  # a file that was deleted takes room for as long as it is open
        return target

    def close(self) -> None:
        self.engine.dispose()


def default_path() -> Path:
    """The file in the user's data folder."""
    if sys.platform == "darwin":
        folder = Path.home() / "Library" / "Application Support"
    else:
        folder = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return folder / "retrograd" / "retrograd.db"


def make_folder(url: str) -> None:
    """The folder of an SQLite file. Nobody else may look into one that is made here: the answers in
    it are the user's own. Raises OSError."""
    full = url_of(url)
    if full.get_backend_name() == "sqlite" and has_file(full):
        Path(str(full.database)).parent.mkdir(mode=0o700, parents=True, exist_ok=True)


def engine_for(url: str, *, foreign_keys: bool = True, pooled: bool = True) -> Engine:
    """An engine over a SQLAlchemy URL, or over a path of an SQLite file. ``foreign_keys`` are
    checked, except while a migration rebuilds a table that others refer to."""
    full = url_of(url)
    pool = {} if pooled else {"poolclass": NullPool}
    if full.get_backend_name() != "sqlite":
        engine = create_engine(full, pool_pre_ping=pooled, **pool)
        if engine.dialect.name == "postgresql":
            event.listen(engine, "begin", _limit_waiting)
        return engine
    options = {"timeout": BUSY_SECONDS, "check_same_thread": False}
    engine = create_engine(full, connect_args=options, **pool)

    def connected(connection: DBAPIConnection, _record: object) -> None:
        _prepare(connection, foreign_keys)

    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", _begin)
    return engine


def shown_url(url: str) -> str:
    """``url`` without its password. Raises ArgumentError and ValueError."""
    return without_secrets(url_of(url)) if "://" in url else url


def reason(error: Exception) -> str:
    """What the database, or the system, said."""
    if isinstance(error, DBAPIError):
        return str(error.orig).strip().partition("\n")[0].rstrip(".")
    return str(getattr(error, "strerror", None) or error)


def _begin(connection: Connection) -> None:
    # The driver itself begins late and only before some statements: a reader would see two states,
    # and a writer that has read first fails at once where another one wrote in between.
    options = connection.get_execution_options()
    if not options.get(_WRITING):
        connection.exec_driver_sql("BEGIN")
        return
    wait = options.get(_WAIT, BUSY_SECONDS)
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {int(wait * 1000)}")
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _limit_waiting(connection: Connection) -> None:
    wait = connection.get_execution_options().get(_WAIT)
    if wait is not None:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {int(wait * 1000)}")


def _prepare(connection: DBAPIConnection, foreign_keys: bool) -> None:
    connection.isolation_level = None  # so that `_begin` begins
    cursor = connection.cursor()
    for pragma in (
        f"busy_timeout = {int(BUSY_SECONDS * 1000)}",
        "synchronous = NORMAL",  # a power cut may lose the last commits, a kill none
        f"foreign_keys = {'ON' if foreign_keys else 'OFF'}",
        f"journal_size_limit = {_WAL_BYTES}",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    if cursor.execute("PRAGMA page_count").fetchone()[0] == 0:
        # Only a new file takes it, and asking another one would wait for its writer. With it, what
        # is deleted can be given back to the disk.
        cursor.execute("PRAGMA auto_vacuum = INCREMENTAL")
    # In this mode readers never wait for the writer. It stays with the file; changing to it wants
    # the file alone, and does not wait for others by itself.
    deadline = time.monotonic() + BUSY_SECONDS
    while cursor.execute("PRAGMA journal_mode").fetchone()[0] not in ("wal", "memory"):
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    cursor.close()
