"""Preparing a run: its configuration, the files that it names, and what the checks say."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import RedirectResponse, Response
from sqlalchemy import select
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile

from app.jobs import queue
from app.jobs.checks import Checks, read_checks
from app.jobs.draft import Reading, Record, placed_config
from app.jobs.queue import QueueError
from app.jobs.runs import PASTED, Jobs, text_of
from app.jobs.uploads import Upload, UploadError, checked_uploads, read_form
from app.routes.config_values import Table, tables_of, unused
from app.server.errors import wants_html
from app.server.pages import PageContext, SettingsDep, StoreDep, WholeNumber, page, render
from app.settings import ServerSettings
from app.store.database import Store
from app.store.models import Run
from app.store.status import DRAFT
from trainer.config import resolved_params

router = APIRouter()

_STATES = {
    "uploaded": "uploaded",
    "kept": "copied from the run it was cloned from",
    "copied": "copied from the workspace",
    "referred": "read where it lies",
    "missing": "missing",
    "refused": "refused",
}


@dataclass(frozen=True, slots=True)
class DraftRow:
    id: int
    name: str
    created_at: float


@dataclass(frozen=True, slots=True)
class Line:
    """``problems`` are what is wrong with it."""

    number: int
    text: str
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FileRow:
    """A file that the configuration names. ``place`` is where it was found."""

    key: str
    written: str
    state: str
    words: str
    place: str
    size: int | None
    why: str


@dataclass(frozen=True, slots=True)
class UploadRow:
    """``used`` says whether a key names it; nobody knows before the configuration can be read."""

    name: str
    size: int
    used: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRunPage(PageContext):
    """``text`` is what the field holds at first, of the run ``clone`` where there is one;
    ``refused`` says why what was sent is not taken."""

    text: str
    clone: int | None
    clone_name: str
    drafts: tuple[DraftRow, ...]
    workspace: str
    max_files: int
    max_bytes: int
    programs: bool
    refused: str = ""
    section: str = "new"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftPage(PageContext):
    id: int
    text: str
    file_name: str
    lines: tuple[Line, ...]
    problems: tuple[str, ...]
    faults: int
    files: tuple[FileRow, ...]
    uploads: tuple[UploadRow, ...]
    tables: list[Table]
    unused: list[str]
    checks: Checks
    errors: int
    warnings: int
    can_start: bool
    ahead: int
    workspace: str
    max_files: int
    max_bytes: int
    programs: bool
    refused: str = ""
    section: str = "new"


@page(router, "/runs/new", "new/page.html")
def new_run(store: StoreDep, settings: SettingsDep, clone: WholeNumber | None = None) -> NewRunPage:
    found = None if clone is None else text_of(store, clone)
    if clone is not None and found is None:
        raise HTTPException(404, f"There is no run {clone} in this store.")
    jobs = Jobs(store, settings)
    return NewRunPage(
        title="New run",
        text=found[0] if found else "",
        clone=clone,
        clone_name=found[2] if found else "",
        drafts=_drafts(jobs),
        workspace=str(jobs.workspace.folder),
        max_files=settings.max_upload_files,
        max_bytes=settings.max_upload_bytes,
        programs=jobs.trust.everything,
    )


@page(router, "/runs/new/{draft_id:id}", "new/draft.html")
def draft(draft_id: int, store: StoreDep, settings: SettingsDep) -> DraftPage:
    jobs = Jobs(store, settings)
    try:
        run, reading = jobs.draft(draft_id), jobs.read(draft_id)
    except QueueError as error:
        raise HTTPException(404, str(error)) from error
    folder = Path(run.folder)
    checks = read_checks(folder)
    config = placed_config(folder) if reading.config is not None else None
    params = resolved_params(config) if config else {}
    with store.read() as session:
        ahead = queue.ahead(session)
    return DraftPage(
        title=run.name,
        id=run.id,
        text=run.config_text,
        file_name=Path(run.config_path).name,
        lines=_lines(run.config_text, reading),
        problems=tuple(p.message for p in reading.problems if p.line is None),
        faults=len(reading.problems),
        files=tuple(_file(found, folder) for found in reading.found if found.state != "word"),
        uploads=_uploads(folder, reading),
        tables=tables_of(config.run.algorithm, params) if config else [],
        unused=unused(config.run.algorithm, params) if config else [],
        checks=checks,
        errors=checks.errors,
        warnings=checks.warnings,
        can_start=reading.can_start and not checks.errors,
        ahead=max(0, ahead - settings.max_concurrent_runs + 1),
        workspace=str(jobs.workspace.folder),
        max_files=settings.max_upload_files,
        max_bytes=settings.max_upload_bytes,
        programs=jobs.trust.everything,
    )


@router.get("/runs/new/{draft_id:id}/")
def draft_slash(draft_id: int) -> RedirectResponse:
    return RedirectResponse(f"/runs/new/{draft_id}", 308)


@router.post("/runs/new")
async def create(request: Request, store: StoreDep, settings: SettingsDep) -> Response:
    """Takes ``toml`` (text), ``files`` (among them, in place of the text, a file ``*.toml``) and
    ``clone`` (a run's id)."""
    jobs = Jobs(store, settings)
    form = FormData()
    try:
        form = await read_form(request, settings)
        text, name, uploads = _sent(form)
        run_id = await run_in_threadpool(_create, jobs, text, name, uploads, _clone_of(form))
    except UploadError as error:
        if not wants_html(request):
            raise
        asked = await run_in_threadpool(_asked_again, store, settings, form, str(error))
        return render(request, "new/page.html", asked, error.status)
    finally:
        await form.close()
    return RedirectResponse(f"/runs/new/{run_id}", 303)


@router.post("/runs/new/{draft_id:id}")
async def change(
    draft_id: int, request: Request, store: StoreDep, settings: SettingsDep
) -> Response:
    """Another text, and more files; the checks begin anew."""
    jobs = Jobs(store, settings)
    form = FormData()
    try:
        form = await read_form(request, settings)
        text, _, uploads = _sent(form)
        await run_in_threadpool(_change, jobs, draft_id, text, uploads)
    except UploadError as error:
        if not wants_html(request):
            raise
        shown = await run_in_threadpool(draft, draft_id, store, settings)
        text = str(form.get("toml") or "") or shown.text
        asked = replace(shown, text=text, refused=str(error))
        return render(request, "new/draft.html", asked, error.status)
    except QueueError as error:
        raise HTTPException(404, str(error)) from error
    finally:
        await form.close()
    return RedirectResponse(f"/runs/new/{draft_id}", 303)


@router.post("/runs/new/{draft_id:id}/start")
def start(draft_id: int, store: StoreDep, settings: SettingsDep) -> Response:
    Jobs(store, settings).start(draft_id)
    return RedirectResponse(f"/runs/{draft_id}", 303)


@router.post("/runs/new/{draft_id:id}/discard")
def discard(draft_id: int, store: StoreDep, settings: SettingsDep) -> Response:
    Jobs(store, settings).discard(draft_id)
    return RedirectResponse("/runs/new", 303)


@router.post("/runs/new/{draft_id:id}/remove")
async def remove(
    draft_id: int, request: Request, store: StoreDep, settings: SettingsDep
) -> Response:
    """Takes ``name``, an uploaded file."""
    jobs = Jobs(store, settings)
    form = await read_form(request, settings)
    try:
        await run_in_threadpool(_remove, jobs, draft_id, str(form.get("name") or ""))
    except QueueError as error:
        raise HTTPException(404, str(error)) from error
    return RedirectResponse(f"/runs/new/{draft_id}", 303)


def _clone_of(form: FormData) -> int | None:
    clone = str(form.get("clone") or "")
    return int(clone) if clone.isdecimal() and len(clone) < 16 else None


def _asked_again(
    store: Store, settings: ServerSettings, form: FormData, refused: str
) -> NewRunPage:
    """The page with the text that was sent; a browser gives no page the files that were chosen."""
    clone = _clone_of(form)
    known = clone if clone is not None and text_of(store, clone) else None
    text = str(form.get("toml") or "")
    return replace(new_run(store, settings, known), text=text, refused=refused)


def _sent(form: FormData) -> tuple[str, str, list[Upload]]:
    """The configuration, its file's name, and the other files. A TOML file goes before the text of
    the field. Raises UploadError."""
    files = [value for value in form.getlist("files") if isinstance(value, UploadFile)]
    uploads = checked_uploads(files)
    configs = [upload for upload in uploads if upload.name.lower().endswith(".toml")]
    if len(configs) > 1:
        names = ", ".join(upload.name for upload in configs)
        raise UploadError(f"A run has one configuration, and these are {len(configs)}: {names}.")
    if not configs:
        text = str(form.get("toml") or "")
        if not text.strip():
            raise UploadError("There is no configuration: paste it, or choose its TOML file.")
        return text, PASTED, uploads
    (config,) = configs
    try:
        text = config.content.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UploadError(f"{config.name} is not UTF-8 text.") from error
    return text, config.name, [upload for upload in uploads if upload is not config]


def _create(jobs: Jobs, text: str, name: str, uploads: list[Upload], clone: int | None) -> int:
    if clone is not None and name == PASTED and (found := text_of(jobs.store, clone)):
        name = found[1]
    run_id = jobs.create(text, uploads, name=name, clone=clone)
    jobs.begin_checks(run_id)
    return run_id


def _change(jobs: Jobs, run_id: int, text: str, uploads: list[Upload]) -> None:
    jobs.save(run_id, text, uploads)
    jobs.begin_checks(run_id)


def _remove(jobs: Jobs, run_id: int, name: str) -> None:
    jobs.remove_upload(run_id, name)
    jobs.begin_checks(run_id)


def _drafts(jobs: Jobs) -> tuple[DraftRow, ...]:
    newest = select(Run).where(Run.status == DRAFT).order_by(Run.id.desc())
    with jobs.store.read() as session:
        return tuple(DraftRow(run.id, run.name, run.created_at) for run in session.scalars(newest))


def _lines(text: str, reading: Reading) -> tuple[Line, ...]:
    problems: dict[int, list[str]] = {}
    for problem in reading.problems:
        if problem.line is not None:
            problems.setdefault(problem.line, []).append(problem.message)
    return tuple(
        Line(number, line, tuple(problems.get(number, ())))
        for number, line in enumerate(text.rstrip("\n").split("\n"), start=1)
    )


def _file(found: Any, folder: Path) -> FileRow:  # noqa: ANN401
    place = found.source or found.path
    inside = place is not None and place.is_relative_to(folder)
    return FileRow(
        key=found.named.key,
        written=found.named.written,
        state=found.state,
        words=_STATES[found.state],
        place=str(place.relative_to(folder)) if inside else str(place or ""),
        size=found.size,
        why=found.why,
    )


def _uploads(folder: Path, reading: Reading) -> tuple[UploadRow, ...]:
    known = reading.config is not None
    used = {found.path for found in reading.found if found.state == "uploaded"}
    return tuple(
        UploadRow(name, (folder / name).stat().st_size, folder / name in used if known else None)
        for name in Record.read(folder).uploads
        if (folder / name).is_file()
    )
