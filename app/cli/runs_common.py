"""What the commands under ``retrograd runs`` share: their options, and the store that they ask."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from app.store.database import Store
    from app.store.models import Run

MOST = 2**63 - 1
"""What a column of the store holds; SQLite refuses a larger number."""
Named = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="The run's number in the list, or a name that no other run has."
    ),
]
Place = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="A file or a SQLAlchemy URL, in place of RETROGRAD_STORE or the user's own store.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@contextmanager
def opened_store(url: str | None) -> Iterator[Store]:
    """The store, in which no run looks alive that is dead. Raises StoreError."""
    from app.store.database import Store
    from app.store.registry import mark_interrupted

    with closing(Store.open(url)) as store:
        mark_interrupted(store)
        yield store


def number_of(opened: Store, word: str) -> int:
    """The number of the run with the number or the name ``word``. Raises StoreError."""
    with opened.read() as session:
        return find_named(session, word, opened).id


def find_named(session: Session, word: str, store: Store) -> Run:
    """The run with the number or the name ``word``. Raises StoreError."""
    from app.store.errors import StoreError
    from app.store.queries.runs import get_run, ids_named
    from app.store.status import UNLISTED
    from app.text import neutralise

    number = int(word) if word.isascii() and word.isdecimal() and len(word) < 20 else None
    if number is not None and number <= MOST:
        run = get_run(session, number)
        if run is not None and run.status not in UNLISTED:
            return run
    named = ids_named(session, word)
    if len(named) > 1:
        raise StoreError(
            f'{len(named)} runs are called "{neutralise(word)}": {", ".join(map(str, named))}. '
            "Name one by its number."
        )
    run = get_run(session, named[0]) if named else None
    if run is None:
        raise unknown_run(number if number is not None else word, store)
    return run


def unknown_run(run: int | str, store: Store) -> Exception:
    """The error that says which run is not there, and how to see those that are."""
    from app.store.errors import StoreError
    from app.text import neutralise

    named = f"run {run}" if isinstance(run, int) else f'run called "{neutralise(run)}"'
    return StoreError(f"There is no {named} in {store.place}; `retrograd runs list` shows them.")
