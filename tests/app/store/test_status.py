from __future__ import annotations

from dataclasses import dataclass

import pytest

from app.store.status import ACTIVE, CHANGING, ENDED, GROUPS, OPEN, RESUMABLE, seconds_taken


@dataclass
class Told:
    status: str
    started_at: float | None
    ended_at: float | None
    heartbeat_at: float | None
    idle_seconds: float = 0.0


@pytest.mark.parametrize(
    ("run", "seconds"),
    [
        (Told("running", 100.0, None, 130.0), 900.0),
        (Told("completed", 100.0, 150.0, 149.0), 50.0),
        (Told("queued", None, None, None), None),
        (Told("queued", 100.0, None, 130.0), 30.0),
        (Told("interrupted", 100.0, 90.0, 90.0), 0.0),
        (Told("completed", 100.0, 550.0, 549.0, idle_seconds=300.0), 150.0),
    ],
)
def test_time_counts_while_a_run_is_at_work(run, seconds):
    assert seconds_taken(run, 1000.0) == seconds


def test_each_status_has_its_place():
    assert set(ACTIVE) < set(OPEN) < set(CHANGING)
    assert set(RESUMABLE) < set(ENDED)
    assert not set(CHANGING) & set(ENDED)
    assert set().union(*GROUPS.values()) == {*ACTIVE, *ENDED}
