"""What a run's status says, in one place for the store, the queue, the pages and the terminal."""

from __future__ import annotations

from typing import Protocol

DRAFT = "draft"
"""Being prepared in the browser: no run yet."""
DELETING = "deleting"
"""Somebody deletes it, or did so and was cut short: its rows are no longer whole."""
ACTIVE = ("starting", "running", "stopping")
"""A process is at work, or is about to be started."""
OPEN = ("queued", *ACTIVE)
"""Something will still happen by itself."""
ENDED = ("completed", "stopped", "failed", "interrupted")
"""Nothing will; interrupted: its process died without a word."""
RESUMABLE = ("stopped", "failed", "interrupted")
"""It ended before all updates were made, so it can go on."""
UNLISTED = (DRAFT, DELETING)
"""No list of runs shows it."""
CHANGING = (DRAFT, DELETING, *OPEN)
"""All that may change without being asked about by name."""
GROUPS: dict[str, tuple[str, ...]] = {
    "running": ACTIVE,
    "finished": ("completed", "stopped"),
    "failed": ("failed", "interrupted"),
}
"""What a filter's word stands for, beside the statuses themselves."""


class Timed(Protocol):
    """A run's row, or what a query has made of it. Times are Unix seconds."""

    @property
    def status(self) -> str: ...
    @property
    def started_at(self) -> float | None: ...
    @property
    def idle_seconds(self) -> float: ...
    @property
    def ended_at(self) -> float | None: ...
    @property
    def heartbeat_at(self) -> float | None: ...


def seconds_taken(run: Timed, now: float) -> float | None:
    """From its first start until ``now`` while it is at work, else to its end; of one that waits to
    go on, to when it was last heard of. Without the time in which it lay still."""
    if run.started_at is None:
        return None
    end = run.ended_at if run.ended_at is not None else run.heartbeat_at
    if run.status in ACTIVE or end is None:
        end = now
    return max(0.0, end - run.started_at - run.idle_seconds)
