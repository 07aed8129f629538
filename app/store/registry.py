"""Entering runs that a terminal starts, and knowing which runs are alive."""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from sqlalchemy import select, update

from app.store.database import Store
from app.store.models import Run, Segment
from app.store.provenance import MODEL, MODEL_FILE, known_digest, model_file
from app.store.segments import identity
from app.store.unfinished import close_what_is_open
from app.store.values import text
from trainer.checkpoint.identity import digest
from trainer.config import RunConfig

ACTIVE = ("starting", "running", "stopping")
ENDED = ("completed", "stopped", "failed", "interrupted")
_SAME_PROCESS_SECONDS = 5.0
_FRESH_SECONDS = 15.0
_OTHER_HOST_SECONDS = 60.0
_DIED = (
    "Its process ended without a word: it was killed, or the machine went down. It can be resumed "
    "from its last checkpoint."
)


def register(store: Store, config: RunConfig, *, resumed: bool = False) -> int:
    """Enter a run that this process makes for a terminal; its row's id. A resumed one goes on in
    the newest row with the same configuration file and output, if its process is gone. Raises
    DBAPIError."""
    now = time.time()
    output = str(config.output.path.absolute())
    values = {
        "name": text(config.run.name),
        "algorithm": config.run.algorithm,
        "model": text(config.model.path.name),
        "source": "terminal",
        "status": "starting",
        "folder": str(config.folder),
        "config_path": str(config.source),
        "config_text": text(_contents(config.source)),
        "output": output,
        "heartbeat_at": now,
        **identity(),
    }
    with store.write() as session:
        run = None
        if resumed:
            same = (Run.config_path == str(config.source), Run.output == output)
            run = session.scalars(select(Run).where(*same).order_by(Run.id.desc()).limit(1)).first()
        if run is None or (run.status in ACTIVE and is_alive(run)):
            run = new_run(now)
            session.add(run)
        else:
            values["source"] = run.source
            values["queued_at"] = None
        for column, value in values.items():
            setattr(run, column, value)
        session.flush()
        return run.id


def new_run(now: float) -> Run:
    """A row that nothing is known of yet."""
    return Run(
        params={}, facts={}, provenance={}, sparkline=[], findings=[], audited=[], created_at=now
    )


def find_model(store: Store, path: Path, base: dict[str, str]) -> dict[str, str]:
    """``base`` with the model's SHA-256, which an earlier run may have found already. Reads the
    whole file otherwise. Raises OSError and DBAPIError."""
    described = text(model_file(path))
    with store.read() as session:
        found = known_digest(session, described)
    return base | {MODEL: found or digest(path), MODEL_FILE: described}


def look_at_model(
    store: Store, path: Path, base: dict[str, str], tell: Callable[[dict[str, str]], None]
) -> threading.Thread:
    """`find_model` on a thread of its own, since a large model takes seconds to read."""

    def look() -> None:
        try:
            tell(find_model(store, path, base))
        except Exception:  # noqa: BLE001  the run itself says what is wrong with its model
            return

    thread = threading.Thread(target=look, name="digest of the model", daemon=True)
    thread.start()
    return thread


def is_alive(run: Run) -> bool:
    """Whether the process of ``run`` is there. Of another machine only the heartbeat is known."""
    age = time.time() - (run.heartbeat_at or 0.0)
    if run.host != platform.node():
        return age < _OTHER_HOST_SECONDS
    if run.pid is None:
        return False
    try:
        process = psutil.Process(run.pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        apart = abs(process.create_time() - (run.process_started_at or 0.0))
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return age < _OTHER_HOST_SECONDS
    # A clock that was set changes when processes are said to have started; then the heart beats.
    return apart < _SAME_PROCESS_SECONDS or age < _FRESH_SECONDS


def mark_interrupted(store: Store) -> list[int]:
    """Give the runs whose process has died their status; their ids. A run without a process is one
    that a server is about to start, and is left to it. Raises DBAPIError."""
    active = select(Run).where(Run.status.in_(ACTIVE), Run.pid.is_not(None))
    with store.read() as session:
        dead = [run.id for run in session.scalars(active) if not is_alive(run)]
    if not dead:
        return []
    with store.write() as session:
        # Read again: since then one of them may have been resumed, or have ended.
        runs = session.scalars(active.where(Run.id.in_(dead)))
        gone = [run for run in runs if not is_alive(run)]
        for run in gone:
            run.status, run.message = "interrupted", _DIED
            run.ended_at = run.heartbeat_at
            run.pulse = Run.pulse + 1
            close_what_is_open(session, run, run.heartbeat_at or time.time())
            open_ones = (Segment.run_id == run.id, Segment.ended_at.is_(None))
            session.execute(
                update(Segment)
                .where(*open_ones)
                .values(ended_at=run.heartbeat_at, status="interrupted")
            )
        return [run.id for run in gone]


def _contents(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError:
        return ""
