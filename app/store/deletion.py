"""Deleting a run: its rows, and what the server keeps of it on the disk."""

from __future__ import annotations

import math
import shutil
from contextlib import suppress
from pathlib import Path

from sqlalchemy import delete, select

from app.store.alive import is_alive
from app.store.database import Store
from app.store.errors import StoreError
from app.store.models import Answer, Event, Group, Metric, Prompt, Run, Update
from app.store.status import ACTIVE, DELETING, DRAFT, ENDED

_ROWS_AT_ONCE = 5000
_PAGES_AT_ONCE = 2000
_CHILDREN = (Answer, Group, Prompt, Metric, Update, Event)


def delete_run(store: Store, run_id: int) -> None:
    """Delete the rows of a run, and the folder of one that was started in the browser; what a run
    of the terminal wrote is the user's own and stays. In short transactions, so that others go on
    writing; the first one sees to it that nobody starts the run any more. Where it is cut short,
    `finish_deletions` does the rest, or the run is deleted again.

    Raises StoreError where there is no such run, or it is queued or at work; DBAPIError, and
    OSError.
    """
    run = _claim(store, run_id)
    if run.source == "browser":
        _remove(Path(run.folder))
    for model in _CHILDREN:
        while True:
            some = select(model.id).where(model.run_id == run_id).limit(_ROWS_AT_ONCE)
            with store.write() as session:
                numbers = session.scalars(some).all()
                session.execute(
                    delete(model)
                    .where(model.id.in_(some))
                    .execution_options(synchronize_session=False)
                )
            if len(numbers) < _ROWS_AT_ONCE:
                break
    with store.write() as session:
        session.execute(delete(Run).where(Run.id == run_id))
    if store.is_sqlite:
        _give_back(store)


def finish_deletions(store: Store) -> None:
    """Delete what is left of the runs whose deletion was cut short. Raises DBAPIError and
    OSError."""
    with store.read() as session:
        left = session.scalars(select(Run.id).where(Run.status == DELETING)).all()
    for run_id in left:
        with suppress(StoreError):  # whoever was at it has done it
            delete_run(store, run_id)


def _claim(store: Store, run_id: int) -> Run:
    """The run, which is from now on being deleted and nothing else."""
    with store.write() as session:
        run = session.get(Run, run_id, with_for_update=True)
        if run is None:
            raise StoreError(f"There is no run {run_id} in this store.")
        if run.status == "queued":
            raise StoreError(
                f"Run {run_id} ({run.name}) is queued. Take it out of the queue before you delete "
                "it: `retrograd runs stop`."
            )
        died = run.status in ACTIVE and run.pid is not None and not is_alive(run)
        if not died and run.status not in (*ENDED, DRAFT, DELETING):
            raise StoreError(f"Run {run_id} ({run.name}) is at work. Stop it before you delete it.")
        run.status, run.pulse = DELETING, Run.pulse + 1
    return run


def _give_back(store: Store) -> None:
    """Give the disk the pages that are free, some at a time."""
    connection = store.engine.raw_connection()
    try:
        cursor = connection.cursor()
        free = math.inf
        while (left := cursor.execute("PRAGMA freelist_count").fetchone()[0]) and left < free:
            free = left
            # A statement that has to be stepped through and gives no rows, which the driver does
            # for scripts alone.
            cursor.executescript(f"PRAGMA incremental_vacuum({_PAGES_AT_ONCE})")
    finally:
        connection.close()


def _remove(folder: Path) -> None:
    # A folder that is gone already leaves nothing to do.
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder)
