"""Processes that a test has started, told from those of the fixtures that live on."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import psutil
import pytest

MARK = "RETROGRAD_TEST_MARK"


def left() -> list[psutil.Process]:
    """What this test has started and is still there."""
    return marked(os.environ[MARK])


def marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every process that a test starts inherits a mark; afterwards nobody alive may carry it."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    yield
    assert marked(mark) == []
