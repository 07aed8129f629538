"""Which processes are there, and whether they are those of runs."""

from __future__ import annotations

import os
import platform
import time

import psutil

from app.store.models import Run
from app.store.rows import Row

HERE = platform.node()
_SAME_PROCESS_SECONDS = 5.0
_FRESH_SECONDS = 15.0
_OTHER_HOST_SECONDS = 60.0


def identity() -> Row:
    """Which process this is, as columns of the run."""
    return {"host": HERE, "pid": os.getpid(), "process_started_at": own_start()}


def own_start() -> float:
    """When this process was started, in Unix seconds."""
    return psutil.Process().create_time()


def started_at(pid: int) -> float | None:
    """When the living process ``pid`` was started; none where there is none, or a dead one that
    nobody has asked for yet. Raises psutil.AccessDenied."""
    try:
        process = psutil.Process(pid)
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return None
        return process.create_time()
    except psutil.NoSuchProcess:
        return None


def process_lives(pid: int | None, since: float | None, heard_at: float | None = None) -> bool:
    """Whether the process ``pid`` of this machine that was started at ``since`` still runs: the
    number alone may belong to another one by now. ``heard_at`` is when it last said so itself."""
    if pid is None:
        return False
    age = time.time() - (heard_at or 0.0)
    try:
        now = started_at(pid)
    except psutil.AccessDenied:
        return age < _OTHER_HOST_SECONDS
    if now is None:
        return False
    # A clock that was set changes when processes are said to have started; then the heart beats.
    return abs(now - (since or 0.0)) < _SAME_PROCESS_SECONDS or age < _FRESH_SECONDS


def is_alive(run: Run) -> bool:
    """Whether the process of ``run`` is there. Of another machine only the heartbeat is known."""
    if run.host != HERE:
        return time.time() - (run.heartbeat_at or 0.0) < _OTHER_HOST_SECONDS
    return process_lives(run.pid, run.process_started_at, run.heartbeat_at)
