"""The files that a run left, and the run itself as files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter, HTTPException
from fastapi.responses import FileResponse, Response, StreamingResponse

from app.routes.run_header import RunPage, find_run, header_of
from app.server.downloads import attachment
from app.server.pages import StoreDep, page
from app.store.exports import EXPORTS, MEDIA
from app.store.left_files import STATES, FileState, look
from app.store.models import Run
from app.store.queries.artifacts import Recorded, artifact_of, artifacts_of
from app.store.status import ACTIVE
from app.text import neutralise

router = APIRouter()

_ABOUT = {
    "model": "The base with the adapter merged in, for any program that loads a GGUF model.",
    "adapter": "The trained LoRA adapter, for llama.cpp.",
    "checkpoint": "What a run goes on from.",
    "observe": "All records of the run, one a line.",
    "config": "The file that described the run.",
}


@dataclass(frozen=True, slots=True)
class LeftFile:
    """``name`` and ``folder`` are made visible; ``words`` say what is wrong with a file that is not
    there as it was recorded."""

    id: int
    kind: str
    about: str
    name: str
    folder: str
    size: int
    sha256: str
    created_at: float
    update: int | None
    state: FileState
    words: str


@dataclass(frozen=True, slots=True)
class ExportLink:
    name: str
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactsPage(RunPage):
    files: list[LeftFile]
    exports: list[ExportLink]


@page(router, "/runs/{run_id:id}/artifacts", "artifacts/page.html")
def artifacts(run_id: int, store: StoreDep) -> ArtifactsPage:
    with store.read() as session:
        run = find_run(session, run_id)
        recorded = artifacts_of(session, run_id)
    return ArtifactsPage(
        title=f"Artifacts of {run.name}",
        run=header_of(run),
        tab="artifacts",
        files=[_left(run, one) for one in recorded],
        exports=[ExportLink(name, export.about) for name, export in EXPORTS.items()],
    )


@router.get("/runs/{run_id:id}/artifacts/{artifact_id:id}")
def artifact(run_id: int, artifact_id: int, store: StoreDep) -> Response:
    with store.read() as session:
        run = find_run(session, run_id)
        recorded = artifact_of(session, run_id, artifact_id)
    if recorded is None:
        raise HTTPException(404, f"Run {run_id} has no artifact {artifact_id}.")
    state = look(recorded, _inside(run), run.status in ACTIVE)
    if state != "there":
        status = {"refused": 403, "growing": 409}.get(state, 410)
        raise HTTPException(status, f"{neutralise(recorded.path)} {STATES[state]}.")
    path = Path(recorded.path)
    fallback = f"run-{run_id}-{recorded.kind}{path.suffix if path.suffix.isascii() else ''}"
    return FileResponse(
        path, media_type="application/octet-stream", headers=attachment(path.name, fallback)
    )


@router.get("/runs/{run_id:id}/export/{name}")
def export(run_id: int, name: str, store: StoreDep) -> Response:
    """Written while it is read: a long run is never in memory as a whole."""
    with store.read() as session:
        run = find_run(session, run_id)
    asked = EXPORTS.get(name)
    if asked is None:
        raise HTTPException(404, f"There is no such file; there are {', '.join(EXPORTS)}.")
    headers = attachment(f"{run.name}-{name}", f"run-{run_id}-{name}")
    lines = asked.lines(store, run_id)
    return StreamingResponse(lines, media_type=MEDIA[asked.form], headers=headers)


def _left(run: Run, recorded: Recorded) -> LeftFile:
    state = look(recorded, _inside(run), run.status in ACTIVE)
    path = Path(recorded.path)
    return LeftFile(
        id=recorded.id,
        kind=recorded.kind,
        about=_ABOUT.get(recorded.kind, ""),
        name=neutralise(path.name),
        folder=neutralise(str(path.parent)),
        size=recorded.size,
        sha256=recorded.sha256,
        created_at=recorded.created_at,
        update=recorded.update,
        state=state,
        words=STATES[state],
    )


def _inside(run: Run) -> Path | None:
    """The folder that all files of the run lie in; a run from a terminal writes where it likes."""
    return Path(run.folder) if run.source == "browser" else None
