"""What stands at the top of each page of a run."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from fastapi import HTTPException
from sqlalchemy.orm import Session

from app.jobs.resumption import Resumption, resumption
from app.server.pages import PageContext
from app.store.models import Run
from app.store.status import ACTIVE, OPEN, UNLISTED, seconds_taken

Tab = Literal["overview", "metrics", "trajectories", "config", "journal", "artifacts"]

TONES = {
    "running": "good",
    "completed": "good",
    "starting": "",
    "stopping": "warn",
    "stopped": "warn",
    "failed": "bad",
    "interrupted": "bad",
}
"""How a status looks; the word itself always stands beside the colour."""


@dataclass(frozen=True, slots=True)
class RunHeader:
    """``progress`` is a share; times are seconds."""

    id: int
    name: str
    algorithm: str
    model: str
    source: str
    status: str
    tone: str
    message: str
    completed: int
    planned: int
    progress: float
    stage: str
    stage_done: int
    stage_total: int
    seconds_left: float | None
    seconds_taken: float | None
    started_at: float | None
    lost: int
    pulse: int
    active: bool
    open: bool
    resumption: Resumption
    evaluates: bool
    """Whether it has held-out prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage(PageContext):
    """What every page of a run has."""

    run: RunHeader
    tab: Tab
    section: str = "runs"


def find_run(session: Session, run_id: int) -> Run:
    """Raises HTTPException (404) where there is no such run."""
    run = session.get(Run, run_id)
    if run is None or run.status in UNLISTED:
        raise HTTPException(404, f"There is no run {run_id} in this store.")
    return run


def header_of(run: Run, now: float | None = None) -> RunHeader:
    now = time.time() if now is None else now
    active = run.status in ACTIVE
    left = None
    if active and run.seconds_per_update is not None and run.planned:
        left = max(0, run.planned - run.completed) * run.seconds_per_update
    return RunHeader(
        id=run.id,
        name=run.name,
        algorithm=run.algorithm,
        model=run.model,
        source=run.source,
        status=run.status,
        tone=TONES.get(run.status, "quiet"),
        message=run.message,
        completed=run.completed,
        planned=run.planned,
        progress=run.completed / run.planned if run.planned else 0.0,
        stage=run.stage if active else "",
        stage_done=run.stage_done,
        stage_total=run.stage_total,
        seconds_left=left,
        seconds_taken=seconds_taken(run, now),
        started_at=run.started_at,
        lost=run.lost,
        pulse=run.pulse,
        active=active,
        open=run.status in OPEN,
        resumption=resumption(run),
        evaluates=run.params.get("evaluation") is not None,
    )
