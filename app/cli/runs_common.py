"""What the commands under ``retrograd runs`` share: their options, and the store that they ask."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from app.store.database import Store

MOST = 2**63 - 1
"""What a column of the store holds; SQLite refuses a larger number."""
Number = Annotated[
    int, typer.Argument(metavar="ID", min=0, max=MOST, help="The run's number in the list.")
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


def unknown_run(run: int | str, store: Store) -> Exception:
    """The error that says which run is not there, and how to see those that are."""
    from app.store.errors import StoreError
    from app.text import neutralise

    named = f"run {run}" if isinstance(run, int) else f'run called "{neutralise(run)}"'
    return StoreError(f"There is no {named} in {store.place}; `retrograd runs list` shows them.")
