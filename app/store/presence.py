"""Whether the file of an SQLite store is still the one that was opened, and what is done if not.

A process that has a file open goes on writing into it after it was deleted, emptied, renamed or
replaced, and nobody will ever find there what it writes. So each transaction looks at the name
first, which costs microseconds, and is refused where the name means another file by now.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Dialect, Engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError, OperationalError

RESCUED = "rescued"


class StoreGoneError(OperationalError):
    """The store's file was deleted, emptied, renamed or replaced while it was open."""


@dataclass(frozen=True, slots=True)
class Presence:
    """The file at ``path`` as it was when it was opened."""

    path: Path
    known: tuple[int, int] | None

    @classmethod
    def of(cls, path: Path) -> Presence:
        return cls(path, _file_at(path))

    def guard(self, engine: Engine) -> None:
        """From here on, connections and transactions of ``engine`` raise StoreGoneError where the
        name means another file; and no connection makes a new one."""

        def connecting(
            dialect: Dialect, _record: object, _arguments: object, options: dict[str, Any]
        ) -> DBAPIConnection:
            self.refuse_another()
            address = f"file:{quote(str(self.path.absolute()))}?mode=rw"
            return dialect.connect(address, **options, uri=True)

        def beginning(_connection: Connection) -> None:
            self.refuse_another()

        event.listen(engine, "do_connect", connecting)
        event.listen(engine, "begin", beginning, insert=True)

    def refuse_another(self) -> None:
        """Raises StoreGoneError."""
        found = _file_at(self.path)
        if found == self.known:
            if found is None or self.path.stat().st_size > 0:
                return
            how = "is empty"
        else:
            how = "is not there any more" if found is None else "is another one than was opened"
        words = (
            f"the file {self.path} {how}: it was deleted, emptied, renamed or replaced meanwhile"
        )
        raise StoreGoneError("BEGIN", None, sqlite3.OperationalError(words))


def rescue(engine: Engine, path: Path) -> Path:
    """Copy what ``engine`` still holds open of the file that was at ``path`` into a new one beside
    it; its path. Raises OSError, sqlite3.Error and, where ``engine`` holds nothing open,
    StoreGoneError; then there is no new file."""
    stem = f"{path.stem}.{RESCUED}-{time.strftime('%Y%m%d-%H%M%S')}"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    target = _new_file(path, stem)
    try:
        # One that is in the pool, since no new one could be made: it was used a moment ago.
        held = engine.raw_connection()
        try:
            source = held.driver_connection
            assert isinstance(source, sqlite3.Connection)
            with closing(sqlite3.connect(target)) as copy:
                source.backup(copy)
                (state,) = copy.execute("PRAGMA quick_check(1)").fetchone()
                if state != "ok":
                    raise sqlite3.DatabaseError(f"what is still held of it is damaged: {state}")
        finally:
            held.close()
    except BaseException:
        for left in target.parent.glob(f"{target.name}*"):
            left.unlink(missing_ok=True)
        raise
    return target


def damaged(error: Exception) -> bool:
    """Whether SQLite found that the file is no database, or not a whole one."""
    code = getattr(error.orig, "sqlite_errorcode", 0) if isinstance(error, DBAPIError) else 0
    return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _new_file(path: Path, stem: str) -> Path:
    """Several processes may be at it in the same second, each with its own copy."""
    number = 1
    while True:
        target = path.with_name(f"{stem}{f'-{number}' if number > 1 else ''}{path.suffix}")
        try:
            target.touch(mode=0o600, exist_ok=False)
        except FileExistsError:
            number += 1
        else:
            return target


def _file_at(path: Path) -> tuple[int, int] | None:
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_dev, state.st_ino
