"""Preparing a run: its configuration, the files that it names, and what the checks say."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import RedirectResponse, Response
from sqlalchemy import select
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData

from app.jobs.queue import QueueError
from app.jobs.runs import PASTED, Jobs, text_of
from app.jobs.uploads import Upload, UploadError, read_form
from app.routes.draft_page import DraftPage, draft_page
from app.routes.sent_form import clone_of, sent
from app.server.errors import wants_html
from app.server.pages import PageContext, SettingsDep, StoreDep, WholeNumber, page, render
from app.settings import ServerSettings
from app.store.database import Store
from app.store.models import Run
from app.store.status import DRAFT

router = APIRouter()


@dataclass(frozen=True, slots=True)
class DraftRow:
    id: int
    name: str
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRunPage(PageContext):
    """``text`` is what the field holds at first, of the run ``clone`` where there is one;
    ``refused`` says why what was sent is not taken, and ``refused_field`` which field that is."""

    text: str
    clone: int | None
    clone_name: str
    drafts: tuple[DraftRow, ...]
    workspace: str
    max_files: int
    max_bytes: int
    programs: bool
    refused: str = ""
    refused_field: str = ""
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
    try:
        return draft_page(Jobs(store, settings), draft_id)
    except QueueError as error:
        raise HTTPException(404, str(error)) from error


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
        text, name, uploads = sent(form)
        run_id = await run_in_threadpool(_create, jobs, text, name, uploads, clone_of(form))
    except UploadError as error:
        if not wants_html(request):
            raise
        asked = await run_in_threadpool(_asked_again, store, settings, form, error)
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
        text, _, uploads = sent(form)
        await run_in_threadpool(_change, jobs, draft_id, text, uploads)
    except UploadError as error:
        if not wants_html(request):
            raise
        shown = await run_in_threadpool(draft, draft_id, store, settings)
        text = str(form.get("toml") or "") or shown.text
        asked = replace(shown, text=text, refused=str(error), refused_field=error.field)
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


def _asked_again(
    store: Store, settings: ServerSettings, form: FormData, refused: UploadError
) -> NewRunPage:
    """The page with the text that was sent; a browser gives no page the files that were chosen."""
    clone = clone_of(form)
    known = clone if clone is not None and text_of(store, clone) else None
    text = str(form.get("toml") or "")
    return replace(
        new_run(store, settings, known),
        text=text,
        refused=str(refused),
        refused_field=refused.field,
    )


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
