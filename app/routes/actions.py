"""What people ask of a run: to stop, to go on, to keep or measure what it has, to be gone."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from app.jobs import queue
from app.jobs.queue import RequestKind
from app.jobs.resumption import refuse_what_cannot_go_on
from app.jobs.runs import Jobs
from app.routes.run_header import RunHeader, find_run, header_of
from app.server.pages import PageContext, SettingsDep, StoreDep, page
from app.store.database import Store

router = APIRouter()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePage(PageContext):
    """``folder`` is removed with the run; empty where its files stay."""

    run: RunHeader
    folder: str
    stays: str
    section: str = "runs"


@router.post("/runs/{run_id:id}/stop")
def stop(run_id: int, request: Request, store: StoreDep) -> Response:
    """Takes a run out of the queue; asks one at work to end well, and a second time to end now."""
    return _ask(request, store, run_id, "stop")


@router.post("/runs/{run_id:id}/checkpoint")
def keep_checkpoint(run_id: int, request: Request, store: StoreDep) -> Response:
    return _ask(request, store, run_id, "checkpoint")


@router.post("/runs/{run_id:id}/evaluate")
def evaluate(run_id: int, request: Request, store: StoreDep) -> Response:
    return _ask(request, store, run_id, "evaluate")


@router.post("/runs/{run_id:id}/resume")
def resume(run_id: int, request: Request, store: StoreDep) -> Response:
    _find(store, run_id)
    refuse_what_cannot_go_on(store, run_id)
    queue.enqueue(store, run_id)
    return _back(request, run_id)


@page(router, "/runs/{run_id:id}/delete", "new/delete.html")
def confirm_deletion(run_id: int, store: StoreDep, settings: SettingsDep) -> DeletePage:
    with store.read() as session:
        run = find_run(session, run_id)
    owned = Jobs(store, settings).owns(run)
    return DeletePage(
        title=f"Delete {run.name}",
        run=header_of(run),
        folder=run.folder if owned else "",
        stays="" if owned else run.output,
    )


@router.post("/runs/{run_id:id}/delete")
def delete(run_id: int, store: StoreDep, settings: SettingsDep) -> Response:
    _find(store, run_id)
    Jobs(store, settings).delete(run_id)
    return RedirectResponse("/", 303)


def _ask(request: Request, store: Store, run_id: int, kind: RequestKind) -> Response:
    _find(store, run_id)
    queue.ask(store, run_id, kind)
    return _back(request, run_id, "" if kind == "stop" else kind)


def _find(store: Store, run_id: int) -> None:
    with store.read() as session:
        find_run(session, run_id)


def _back(request: Request, run_id: int, asked: str = "") -> Response:
    """To the page of the run on which the button was pressed, which tells what was ``asked``."""
    own = f"/runs/{run_id}"
    came_from = urlsplit(request.headers.get("referer", ""))
    query = []
    if came_from.path == own or came_from.path.startswith(f"{own}/"):
        query = parse_qsl(came_from.query, keep_blank_values=True)
        own = own if "delete" in came_from.path else came_from.path
    query = [(key, value) for key, value in query if key != "asked"]
    query += [("asked", asked)] if asked else []
    return RedirectResponse(f"{own}?{urlencode(query)}" if query else own, 303)
