"""What a process inherits that is started for a run or a conversation.

The mark of a run's processes is a variable of their environment, which all that they start
inherits. So what is left of a run that was killed can be found, whatever process groups it made for
itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from app.store.database import VARIABLE, Store

MARK = "RETROGRAD_JOB"
_NOT_PASSED_ON = ("RETROGRAD_TOKEN", VARIABLE)
"""A token, and a URL that may hold a password: no business of what is started."""


def environment() -> dict[str, str]:
    """This process's, without what is a secret of the server."""
    return {name: value for name, value in os.environ.items() if name not in _NOT_PASSED_ON}


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
