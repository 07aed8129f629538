"""The mark of a run's processes: a variable of their environment, which all that they start
inherits. So what is left of a run that was killed can be found, whatever process groups it made for
itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from app.store.database import Store

MARK = "RETROGRAD_JOB"


def mark_of(store: Store, run_id: int) -> str:
    """What marks the processes of a run."""
    return f"run {run_id} of {store.identity}"


@contextmanager
def marked_as(store: Store, run_id: int) -> Iterator[None]:
    """Inside, whatever this process starts belongs to the run."""
    before = os.environ.get(MARK)
    os.environ[MARK] = mark_of(store, run_id)
    try:
        yield
    finally:
        if before is None:
            del os.environ[MARK]
        else:
            os.environ[MARK] = before
