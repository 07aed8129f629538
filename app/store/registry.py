"""Entering runs that a terminal starts, and knowing which runs are alive."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.store.alive import identity, is_alive
from app.store.database import Store
from app.store.models import Run
from app.store.provenance import MODEL, MODEL_FILE, known_digest, model_file
from app.store.status import ACTIVE, DELETING
from app.store.unfinished import close_run
from app.store.values import text
from trainer.checkpoint.identity import digest
from trainer.config import RunConfig
from trainer.monitor import RunInfo

_DIED = "Its process ended without a word: it was killed, or the machine went down."


def register(store: Store, config: RunConfig, info: RunInfo) -> int:
    """Enter a run that this process makes for a terminal; its row's id. One that goes on does so in
    its own row, if its process is gone: the one with its name and output or, of a run that had no
    name yet, the newest with the same configuration file and output. Raises DBAPIError."""
    now = time.time()
    values = {
        "source": "terminal",
        "status": "starting",
        "folder": str(config.folder),
        "config_path": str(config.source),
        "config_text": text(_contents(config.source)),
        "heartbeat_at": now,
        **identity(),
    }
    with store.write() as session:
        run = _own_row(session, config, info)
        if run is None or (run.status in ACTIVE and is_alive(run)):
            run = new_run(now)
            session.add(run)
        else:
            values["source"] = run.source
            values["queued_at"] = None
        for column, value in values.items():
            setattr(run, column, value)
        fill_from_config(run, config)
        session.flush()
        return run.id


def _own_row(session: Session, config: RunConfig, info: RunInfo) -> Run | None:
    if info.resumed_from_update is None:
        return None
    named = Run.uuid == info.run_id
    unnamed = (Run.uuid == "") & (Run.config_path == str(config.source))
    return session.scalars(
        select(Run)
        .where(named | unnamed, Run.output == _output(config), Run.status != DELETING)
        .order_by((Run.uuid == "").asc(), Run.id.desc())
        .limit(1)
    ).first()


def new_run(now: float) -> Run:
    """A row that nothing is known of yet."""
    return Run(
        params={}, facts={}, provenance={}, sparkline=[], findings=[], audited=[], created_at=now
    )


def fill_from_config(run: Run, config: RunConfig) -> None:
    """What the configuration says of a run before it has begun."""
    run.name, run.algorithm = text(config.run.name), config.run.algorithm
    run.model, run.output = text(config.model.path.name), _output(config)
    run.planned = getattr(getattr(config, "rollout", None), "updates", 0)


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


def mark_interrupted(store: Store) -> list[int]:
    """Give the runs whose process has died their status; their ids. A run without a process is one
    that a server is about to start, and is left to it. Raises DBAPIError."""
    active = select(Run).where(Run.status.in_(ACTIVE), Run.pid.is_not(None))
    with store.read() as session:
        dead = [run.id for run in session.scalars(active) if not is_alive(run)]
    if not dead:
        return []
    with store.write() as session:
        # Read again: since then one of them may have been resumed, have ended, or have been marked
        # by another server.
        runs = session.scalars(active.where(Run.id.in_(dead)).with_for_update())
        gone = [run for run in runs if not is_alive(run)]
        for run in gone:
            close_run(session, run, "interrupted", _DIED, run.heartbeat_at or time.time())
        return [run.id for run in gone]


def _output(config: RunConfig) -> str:
    return str(config.output.path.absolute())


def _contents(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError:
        return ""
