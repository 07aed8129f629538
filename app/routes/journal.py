"""What happened in a run, in words: its events, and the log of the process that makes it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import FileResponse, Response

from app.jobs.runs import Jobs
from app.jobs.workspace import LOG
from app.routes.log_tail import LogTail, read_tail
from app.routes.run_header import RunPage, find_run, header_of
from app.server.downloads import attachment
from app.server.pages import SettingsDep, StoreDep, WholeNumber, Words, page
from app.store.models import Run
from app.store.queries.journal import Entries, Level, count_by_level, entries

router = APIRouter()

LEVELS: tuple[Level, ...] = ("info", "warning", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalPage(RunPage):
    """``counts`` are the events of each level. ``log`` is there for what runs for the browser:
    what a run says in a terminal, its terminal shows."""

    level: Level
    text: str
    after: int | None
    before: int | None
    counts: dict[str, int]
    entries: Entries
    log: LogTail | None
    levels: tuple[Level, ...] = LEVELS


@page(router, "/runs/{run_id:id}/journal", "journal/page.html")
def journal(
    run_id: int,
    store: StoreDep,
    settings: SettingsDep,
    level: Level = "info",
    text: Annotated[Words, Query(alias="q", max_length=200)] = "",
    after: WholeNumber | None = None,
    before: WholeNumber | None = None,
) -> JournalPage:
    with store.read() as session:
        run = find_run(session, run_id)
        counts = count_by_level(session, run_id)
        found = entries(session, run_id, level=level, text=text, after=after, before=before)
    path = _log(Jobs(store, settings), run)
    return JournalPage(
        title=f"Journal of {run.name}",
        run=header_of(run),
        tab="journal",
        level=level,
        text=text,
        after=after,
        before=before,
        counts={name: counts.get(name, 0) for name in LEVELS},
        entries=found,
        log=None if path is None else read_tail(path),
    )


@router.get("/runs/{run_id:id}/worker.log")
def log(run_id: int, store: StoreDep, settings: SettingsDep) -> Response:
    """The whole of it."""
    with store.read() as session:
        path = _log(Jobs(store, settings), find_run(session, run_id))
    if path is None or path.is_symlink() or not path.is_file():
        raise HTTPException(404, "This run has no log.")
    name = f"run-{run_id}.log"
    return FileResponse(path, media_type="text/plain", headers=attachment(name, name))


def _log(jobs: Jobs, run: Run) -> Path | None:
    """That of the process which makes it, or made it last, for the browser: a run that began in a
    terminal has one too, once it goes on here."""
    path = jobs.place_of(run.id) / LOG
    if path.is_file():
        return path
    return Path(run.folder) / LOG if run.source == "browser" else None
