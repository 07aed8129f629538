"""Lasting addresses of answers, and answers as files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException
from fastapi.responses import RedirectResponse, StreamingResponse

from app.routes.reading.state import State, state_of
from app.routes.run_header import find_run
from app.server.downloads import attachment
from app.server.pages import StoreDep
from app.store.database import Store
from app.store.export_answers import answers_csv, answers_jsonl
from app.store.queries.places import place_of
from app.store.queries.trajectories import find_answer

router = APIRouter()

Export = Callable[..., Iterator[str]]
_NO_UPDATE = -1
StateDep = Annotated[State, Depends(state_of)]


@router.get("/runs/{run_id:id}/answers/{answer_id:id}")
def answer(run_id: int, answer_id: int, store: StoreDep) -> RedirectResponse:
    """To the place of the answer, which other segments or orders do not change."""
    with store.read() as session:
        find_run(session, run_id)
        found = find_answer(session, run_id, answer_id)
    if found is None:
        raise HTTPException(404, f"There is no answer {answer_id} in run {run_id}.")
    row, counts = found
    if not counts:
        raise HTTPException(
            404,
            f"Answer {answer_id} was superseded: the run was resumed from before update "
            f"{row.update}, and what came after no longer counts.",
        )
    place = State(run_id, kind=row.kind, update=row.update, group=row.group)
    return RedirectResponse(f"{place.url()}#answer-{row.id}", 302)


@router.get("/runs/{run_id:id}/trajectories.csv")
def trajectories_csv(state: StateDep, store: StoreDep) -> StreamingResponse:
    return _file(store, state, "csv", "text/csv; charset=utf-8", answers_csv)


@router.get("/runs/{run_id:id}/trajectories.jsonl")
def trajectories_jsonl(state: StateDep, store: StoreDep) -> StreamingResponse:
    return _file(store, state, "jsonl", "application/x-ndjson", answers_jsonl)


def _file(
    store: Store, state: State, ending: str, media_type: str, lines: Export
) -> StreamingResponse:
    """The answers that ``state`` selects, one after the other as they are read: of the run, or of
    the open update (of one group, where one is open), as far as they pass the filters."""
    with store.read() as session:
        find_run(session, state.run_id)
        place = place_of(session, state.run_id, state.kind, state.update)
    update = group = None
    if state.scope != "run":
        update = _NO_UPDATE if place is None else place.update
        group = None if state.filters.on else state.group
    name = f"run-{state.run_id}-answers.{ending}"
    return StreamingResponse(
        lines(store, state.run_id, state.kind, state.filters, update, group),
        media_type=media_type,
        headers=attachment(name, name),
    )
