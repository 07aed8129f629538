"""Hints for open pages: what kind of thing has changed. The page then asks for it itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.orm import Session

from app.routes.run_header import find_run
from app.server.hints import Hints, Listener
from app.server.pages import StoreDep
from app.server.streams import RETRY_MILLISECONDS, next_for
from app.store.database import Store
from app.store.queries.changes import OF_A_RUN, Kind, mark_of, newest_ids

router = APIRouter()


@dataclass(frozen=True, slots=True)
class Hint:
    """Rows of this kind up to ``last_id`` are there now."""

    kind: Kind
    last_id: int


@dataclass(frozen=True, slots=True)
class Missed:
    """What a page that had seen an earlier state has to ask for; ``mark`` is the present one."""

    mark: str
    hints: list[Hint]


def hints_of(request: Request) -> Hints:
    hints: Hints = request.app.state.hints
    return hints


def run_of(run_id: int, store: StoreDep) -> int:
    """Raises HTTPException (404) before a stream has begun."""
    with store.read() as session:
        return find_run(session, run_id).id


HintsDep = Annotated[Hints, Depends(hints_of)]
RunDep = Annotated[int, Depends(run_of)]


# Dependencies end with their request, also where the reader's connection was reset.
async def listener_of(hints: HintsDep) -> AsyncIterator[Listener]:
    with hints.listen(None) as listener:
        yield listener


async def run_listener_of(run_id: RunDep, hints: HintsDep) -> AsyncIterator[Listener]:
    with hints.listen(run_id) as listener:
        yield listener


SeenDep = Annotated[str | None, Query(max_length=80)]
LastEventDep = Annotated[str | None, Header(alias="Last-Event-ID", max_length=80)]


@router.get("/live", response_class=EventSourceResponse)
async def live_runs(
    request: Request,
    store: StoreDep,
    hints: HintsDep,
    listener: Annotated[Listener, Depends(listener_of)],
    seen: SeenDep = None,
    last_event_id: LastEventDep = None,
) -> AsyncIterator[ServerSentEvent]:
    caught_up = partial(_catch_up, store, hints, None, last_event_id or seen)
    async for event in _events(request, caught_up, listener):
        yield event


@router.get("/runs/{run_id:id}/live", response_class=EventSourceResponse)
async def live_run(
    request: Request,
    run_id: RunDep,
    store: StoreDep,
    hints: HintsDep,
    listener: Annotated[Listener, Depends(run_listener_of)],
    seen: SeenDep = None,
    last_event_id: LastEventDep = None,
) -> AsyncIterator[ServerSentEvent]:
    caught_up = partial(_catch_up, store, hints, run_id, last_event_id or seen)
    async for event in _events(request, caught_up, listener):
        yield event


@router.get("/live.json")
def missed_runs(store: StoreDep, seen: SeenDep = None) -> Missed:
    """For pages that cannot keep a stream open."""
    with store.read() as session:
        return missed(session, None, seen)


@router.get("/runs/{run_id:id}/live.json")
def missed_run(run_id: RunDep, store: StoreDep, seen: SeenDep = None) -> Missed:
    with store.read() as session:
        return missed(session, run_id, seen)


def missed(session: Session, run_id: int | None, seen: str | None) -> Missed:
    """Everything that may have changed, where ``seen`` is not the present mark; a page that has
    seen nothing yet is up to date."""
    mark = mark_of(session, run_id)
    if seen is None or seen == mark:
        return Missed(mark, [])
    newest = newest_ids(session)
    kinds: tuple[Kind, ...] = OF_A_RUN if run_id is not None else ("runs",)
    return Missed(mark, [Hint(kind, newest.get(kind, 0)) for kind in kinds])


def _catch_up(store: Store, hints: Hints, run_id: int | None, seen: str | None) -> Missed:
    hints.begun()
    with store.read() as session:
        return missed(session, run_id, seen)


async def _events(
    request: Request, catch_up: Callable[[], Missed], listener: Listener
) -> AsyncIterator[ServerSentEvent]:
    """The first event has no hint and tells that the stream is open. It ends soon after a logout,
    and then tells nothing further."""
    before = await asyncio.to_thread(catch_up)
    yield ServerSentEvent(event="open", data="", retry=RETRY_MILLISECONDS)
    for event in _told(before.hints, before.mark):
        yield event
    while news := await next_for(request, listener.news):
        for event in _told([Hint(one.kind, one.last_id) for one in news], news[-1].mark):
            yield event


def _told(hints: list[Hint], mark: str) -> list[ServerSentEvent]:
    """The last one alone has the id: with less than all of them, nothing counts as seen."""
    return [
        ServerSentEvent(event="hint", data=hint, id=mark if hint is hints[-1] else None)
        for hint in hints
    ]
