"""Processes that outlive the one that started them: how they are started, told apart, and ended
with all that they started."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

from app.store.database import Store
from app.store.marks import MARK, environment

_TERMINATE_SECONDS = 2.0
_KILL_SECONDS = 2.0


def start(
    module: str,
    arguments: Sequence[str],
    *,
    mark: str,
    log: Path,
    variables: dict[str, str] | None = None,
    first: bytes = b"",
) -> subprocess.Popen[bytes]:
    """``python -m module`` in a session of its own, writing to the end of ``log``, with ``first``
    on a line before. Raises OSError."""
    own = {MARK: mark, "PYTHONUNBUFFERED": "1", **(variables or {})}
    with log.open("ab") as output:
        output.write(b"\n" * bool(first and output.tell()) + first)
        output.flush()
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment() | own,
            start_new_session=True,
        )


def runs_with_processes(store: Store) -> set[int]:
    """The ids of the runs of ``store`` that some process of this machine is marked with."""
    pattern = re.compile(rf"run (\d+) of {re.escape(store.identity)}")
    found = (pattern.fullmatch(mark) for _, mark in _marks())
    return {int(match[1]) for match in found if match}


def signal_group(pid: int, number: signal.Signals) -> None:
    """Send to the group that ``pid`` leads, if it is there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def end_all(mark: str) -> int:
    """Ends every process of the job ``mark``; returns how many there were."""
    found = _marked(mark)
    for process in found:
        _send(process, signal.SIGTERM)
    _wait(lambda: not _marked(mark), _TERMINATE_SECONDS)
    deadline = time.monotonic() + _KILL_SECONDS
    # More than once: one that is ending may have started another one meanwhile.
    while (left := _marked(mark)) and time.monotonic() < deadline:
        for process in left:
            _send(process, signal.SIGKILL)
        time.sleep(0.02)
    return len(found)


def _marked(mark: str) -> list[psutil.Process]:
    return [process for process, its in _marks() if its == mark]


def _marks() -> Iterator[tuple[psutil.Process, str]]:
    """The living processes of jobs, but for this one."""
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if mark := process.environ().get(MARK):
                yield process, mark
        except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            continue  # it ended between two looks, or is somebody else's


def _send(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        process.send_signal(number)


def _wait(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
