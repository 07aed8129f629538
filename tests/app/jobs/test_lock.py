from __future__ import annotations

import pytest

from app.jobs.lock import locked
from app.jobs.queue import QueueError


def test_one_at_a_time(tmp_path):
    with (
        locked(tmp_path),
        pytest.raises(QueueError, match="is being changed at this moment"),
        locked(tmp_path, patience=0.05),
    ):
        pass
    with locked(tmp_path, patience=0.0):
        pass


def test_what_fails_inside_leaves_it_free(tmp_path):
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        raise ZeroDivisionError
    with locked(tmp_path, patience=0.0):
        pass


def test_a_draft_that_is_gone(tmp_path):
    with pytest.raises(QueueError, match="is not there any more"), locked(tmp_path / "none"):
        pass
