"""Waiting for what comes about, and for nothing longer than that."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

SECONDS = 30.0
_PAUSE = 0.02


def eventually(look: Callable[[], T | None], what: str, seconds: float = SECONDS) -> T:
    """What ``look`` finds, once it finds something true."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"after {seconds:g} s there is still not: {what}"
        time.sleep(_PAUSE)
    return found
