"""What a server does for its runs: starts the next one, ends those that do not stop by themselves,
and clears up after those that died.

All that it knows is in the store, so that another server, or the same one after a restart, goes on
where this one ended; the runs' processes never depend on it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from app.jobs import queue
from app.jobs.log import beginning, log_tail
from app.jobs.processes import (
    end_all,
    runs_with_processes,
    signal_group,
    start,
)
from app.jobs.runs import Jobs
from app.jobs.workspace import LOG
from app.store.alive import HERE, is_alive, started_at
from app.store.database import VARIABLE, Store
from app.store.deletion import finish_deletions
from app.store.marks import mark_of
from app.store.models import Request, Run
from app.store.registry import mark_interrupted
from app.store.status import ACTIVE, OPEN

STOP_GRACE_SECONDS = 600.0
"""How long a run that is asked to stop may take for the update at hand."""
_AGAIN_SECONDS = 3.0
"""Between asking by a signal and asking by another one, which ends the run at once."""
_KILL_SECONDS = 60.0
"""For writing the adapter after that."""
_TURN_SECONDS = 0.3
_LOOK_SECONDS = 1.5
_UNCLAIMED_SECONDS = 30.0


@dataclass(slots=True)
class _Stopping:
    """How far ending a run by signals has got."""

    signals: int = 0
    next_at: float = 0.0


@dataclass(slots=True)
class Supervisor:
    """A thread over the store of ``jobs``; `stop` ends the thread and no run."""

    jobs: Jobs
    stop_grace: float = STOP_GRACE_SECONDS
    _children: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    _stopping: dict[int, _Stopping] = field(default_factory=dict)
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _next_look: float = 0.0
    _active: set[int] | None = None
    _complaint: str = ""

    @property
    def store(self) -> Store:
        return self.jobs.store

    def start(self) -> None:
        self._thread = threading.Thread(target=self._loop, name="supervisor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def turn(self) -> None:
        """Everything once."""
        self._reap()
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK_SECONDS
            self._bury()
            self._hurry()
        while self._start_next():
            continue

    def _loop(self) -> None:
        while not self._ended.wait(_TURN_SECONDS):
            try:
                self.turn()
                self._complaint = ""
            except SQLAlchemyError as error:
                self._complain(str(getattr(error, "orig", error)))
                self._ended.wait(_LOOK_SECONDS)
            except Exception:  # noqa: BLE001  the next turn may do better; runs need their supervisor
                traceback.print_exc()
                self._ended.wait(_LOOK_SECONDS)

    def _complain(self, words: str) -> None:
        """Once for each trouble, however often it is met."""
        if words != self._complaint:
            print(f"The queue waits for the store: {words}", file=sys.stderr)
        self._complaint = words

    def _start_next(self) -> bool:
        claim = queue.claim(self.store, self.jobs.settings.max_concurrent_runs)
        if claim is None:
            return False
        url = self.store.engine.url.render_as_string(hide_password=False)
        arguments = ["--run", str(claim.run_id)] + (["--resume"] if claim.resumes else [])
        try:
            process = start(
                "app.jobs.worker",
                arguments,
                mark=mark_of(self.store, claim.run_id),
                log=self.jobs.log_folder(claim.run_id) / LOG,
                variables={VARIABLE: url},
                first=beginning(),
            )
        except OSError as error:
            words = f"The run's process could not be started: {error.strerror or error}."
            queue.end(self.store, claim.run_id, "failed", words)
            return True
        queue.started(self.store, claim.run_id, process.pid, started_at(process.pid))
        # One that goes on may have been claimed in the moment in which its last process ended.
        if before := self._children.get(claim.run_id):
            before.wait()
        self._children[claim.run_id] = process
        return True

    def _reap(self) -> None:
        for run_id, process in list(self._children.items()):
            status = process.poll()
            if status is None:
                continue
            del self._children[run_id]
            self._settle(run_id, process.pid, status)

    def _settle(self, run_id: int, pid: int, status: int) -> None:
        """A child has ended: if it left its run open, say how."""
        with self.store.read() as session:
            run = session.get(Run, run_id)
        if run is None:
            end_all(mark_of(self.store, run_id))
            return
        began = run.status != "starting"
        words = f"The run's process ended without a word ({_ended_how(status)})"
        words += "." if began else " before it began to train."
        final = "interrupted" if began or status < 0 else "failed"
        words = _with_log(words, self.jobs.log_folder(run_id))
        ended = queue.end(self.store, run_id, final, words, pid=pid)
        # What goes on by now, or waits to, has processes of the same mark.
        if ended or (status != 0 and run.status not in OPEN):
            end_all(mark_of(self.store, run_id))

    def _bury(self) -> None:
        """Runs whose process died while nobody was looking, what is left of them, and starts that
        were never made."""
        mark_interrupted(self.store)
        with self.store.read() as session:
            active = session.scalars(
                select(Run).where(Run.status.in_(ACTIVE), Run.host == HERE)
            ).all()
        for run in active:
            stale = time.time() - (run.heartbeat_at or 0.0) > _UNCLAIMED_SECONDS
            if run.status == "starting" and run.pid is None and stale:
                queue.put_back(self.store, run.id)
        now = {run.id for run in active}
        if self._active is None:
            threading.Thread(target=self._finish_deletions, daemon=True).start()
        if self._active is None or self._active - now:
            self._sweep()
        self._active = now

    def _finish_deletions(self) -> None:
        """On a thread of its own: a long run takes minutes, and the queue does not wait for it."""
        try:
            finish_deletions(self.store)
        except (SQLAlchemyError, OSError) as error:
            print(f"A run that was being deleted is not gone yet: {error}", file=sys.stderr)

    def _sweep(self) -> None:
        """End what runs have left behind that are over: another program may have noticed that they
        died, and it does not look for reward programs."""
        for run_id in runs_with_processes(self.store):
            with self.store.read() as session:
                run = session.get(Run, run_id)
            over = run is None or run.status not in ACTIVE
            # A run that has ended well may have a process that still puts things away.
            if over and not (run and is_alive(run)):
                end_all(mark_of(self.store, run_id))

    def _hurry(self) -> None:
        """Runs that were asked to stop and take too long, or were asked twice."""
        with self.store.read() as session:
            stopping = session.scalars(
                select(Run).where(
                    Run.status.in_(("stopping", "running", "starting")),
                    Run.queued_at.is_not(None),
                    Run.host == HERE,
                )
            ).all()
            asked = {run.id: _stops(session, run) for run in stopping}
        for run in stopping:
            times = asked[run.id]
            overdue = bool(times) and time.time() - times[0] > self.stop_grace
            if len(times) > 1 or overdue:
                self._press(run)
        for run_id in self._stopping.keys() - {run.id for run in stopping}:
            del self._stopping[run_id]

    def _press(self, run: Run) -> None:
        if run.pid is None or not is_alive(run):
            return
        state = self._stopping.setdefault(run.id, _Stopping())
        if time.monotonic() < state.next_at:
            return
        number = signal.SIGTERM if state.signals < 2 else signal.SIGKILL
        signal_group(run.pid, number)
        state.signals += 1
        pause = _AGAIN_SECONDS if state.signals < 2 else _KILL_SECONDS
        state.next_at = time.monotonic() + pause


def _stops(session: Session, run: Run) -> list[float]:
    """When the present process of ``run`` was asked to stop."""
    asked = select(Request.created_at).where(
        Request.run_id == run.id, Request.kind == "stop", Request.created_at >= (run.queued_at or 0)
    )
    return list(session.scalars(asked.order_by(Request.created_at)))


def _ended_how(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"ended by signal {-status}"


def _with_log(words: str, folder: Path) -> str:
    tail = log_tail(folder)
    return f"{words} Its log ends with:\n{tail}" if tail else words
