"""The database: where it is, how it is opened, and sessions over it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.orm import Session

BUSY_SECONDS = 10.0
"""How long a writer waits for another one before it gives up."""


class Store:
    """An open database. Threads may share it; each session belongs to one of them."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session that sees one state of the database; nothing in it is kept."""
        with Session(self.engine, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """One short transaction, kept when the block ends well."""
        with Session(self.engine, expire_on_commit=False) as session, session.begin():
            yield session

    def close(self) -> None:
        self.engine.dispose()


def engine_for(url: str) -> Engine:
    """An engine over a SQLAlchemy URL, or over a path of an SQLite file."""
    if "://" not in url:
        url = f"sqlite:///{Path(url).expanduser().absolute()}"
    if not url.startswith("sqlite"):
        return create_engine(url, pool_pre_ping=True)
    engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False})
    event.listen(engine, "connect", _prepare)
    return engine


def _prepare(connection: DBAPIConnection, _record: object) -> None:
    cursor = connection.cursor()
    for pragma in (
        "journal_mode = WAL",  # readers never wait for the writer
        "synchronous = NORMAL",  # a power cut may lose the last commits, a kill none
        "foreign_keys = ON",
        f"busy_timeout = {int(BUSY_SECONDS * 1000)}",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
