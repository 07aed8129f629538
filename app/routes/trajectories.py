"""Every answer of a run, by update and prompt, with what was decided about it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import APIRouter, Depends
from sqlalchemy.orm import Session

from app.routes.reading.badges import LEGEND, Badge
from app.routes.reading.notes import Note, note_of
from app.routes.reading.state import FLAGS, SKIPS, State, state_of
from app.routes.reading.views import (
    AnswerView,
    Comparison,
    Found,
    GroupView,
    PromptView,
    Strip,
)
from app.routes.run_header import RunHeader, RunPage, find_run, header_of
from app.server.pages import StoreDep, page
from app.store.queries.answers import Filters, matching
from app.store.queries.heat import Heat, heat_of, latest_of
from app.store.queries.places import Place, place_of
from app.store.queries.search import search
from app.store.queries.trajectories import (
    GROUPS_AT_ONCE,
    AnswerRow,
    Occasion,
    answers_of,
    find_answer,
    group_numbers,
    groups_of,
    lines_of,
    occasions_of,
    prompt_of,
)

router = APIRouter()

StateDep = Annotated[State, Depends(state_of)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The open group with its neighbours in the list; ``index`` counts from 0 there."""

    group: GroupView
    index: int
    earlier: int | None
    later: int | None
    prompt: PromptView
    answers: list[AnswerView]
    occasions: list[Occasion]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupList:
    """The groups of the open update from ``since`` on, of ``count``."""

    groups: list[GroupView]
    since: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Answers wherever they are; ``after`` is where the next page begins."""

    answers: list[AnswerView]
    after: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoriesPage(RunPage):
    """Of ``opened``, ``listing``, ``found`` and ``comparison`` one is shown at most: a group, the
    answers that fit the filters (or those of an update of single answers), the results of a
    search, or two answers side by side. ``held_out`` is the latest evaluation."""

    state: State
    strip: Strip
    place: Place | None
    grouped: GroupList | None
    opened: Opened | None
    listing: Listing | None
    found: Found | None
    comparison: Comparison | None
    marked: AnswerRow | None
    held_out: int | None
    notes: list[Note]
    legend: tuple[Badge, ...] = LEGEND
    reasons: tuple[str, ...] = SKIPS
    flags: tuple[str, ...] = FLAGS


@page(router, "/runs/{run_id:id}/trajectories", "trajectories/page.html")
def trajectories(run_id: int, state: StateDep, store: StoreDep) -> TrajectoriesPage:
    with store.read() as session:
        run = header_of(find_run(session, run_id))
        return _page(session, run, state)


def _page(session: Session, run: RunHeader, state: State) -> TrajectoriesPage:
    asked = None if state.follow else state.update
    place = place_of(session, run.id, state.kind, asked)
    if place is not None:
        # So that what is open stays open wherever its links lead, whatever comes meanwhile.
        state = replace(state, update=place.update)
    heat = heat_of(session, run.id, state.kind, place.update if place else None)
    pair = [_shown_answer(session, heat, state, number) for number in (state.marked, state.against)]
    comparison = Comparison(pair[0], pair[1]) if pair[0] and pair[1] else None
    found = listing = opened = groups = None
    if place is not None and place.groups:
        groups, opened = _groups(session, heat, place, state)
    if comparison is None and state.q:
        found = Found(search(session, run.id, state.q, state.before))
    elif comparison is None and place is not None and _is_list(state, place):
        listing = _listing(session, heat, place, state)
    return TrajectoriesPage(
        title=f"{run.name}: trajectories",
        tab="trajectories",
        run=run,
        state=state,
        strip=Strip(heat, place.update if place else None),
        place=place,
        grouped=groups,
        opened=None if comparison or found or listing else opened,
        listing=listing,
        found=found,
        comparison=comparison,
        marked=pair[0].row if pair[0] else None,
        held_out=latest_of(session, run.id, "evaluation"),
        notes=list(note_of(session, run, state, place, gone=_gone(state, pair))),
    )


def _is_list(state: State, place: Place) -> bool:
    """Groups of one answer each are read in a row, until one of them is opened."""
    singles = place.groups > 1 and place.groups == place.answers
    return state.listing or (singles and state.group is None)


def _gone(state: State, pair: list[AnswerView | None]) -> bool:
    """Whether an answer that was to be compared is not there."""
    wanted = (state.marked, state.against)
    return any(number and view is None for number, view in zip(wanted, pair, strict=True))


def _shown_answer(
    session: Session, heat: Heat, state: State, number: int | None
) -> AnswerView | None:
    found = find_answer(session, state.run_id, number) if number is not None else None
    if found is None or not found[1]:
        return None
    line = lines_of(session, [found[0].prompt_id])[found[0].prompt_id]
    return AnswerView(found[0], heat.scale, line)


def _groups(
    session: Session, heat: Heat, place: Place, state: State
) -> tuple[GroupList, Opened | None]:
    at = (session, state.run_id, state.kind, place.update)
    numbers = group_numbers(*at, state.sort)
    wanted = numbers[0] if state.group is None else state.group
    index = numbers.index(wanted) if wanted in numbers else None
    since = min(state.since, len(numbers) - 1)
    if not since and index is not None:
        since = index - index % GROUPS_AT_ONCE
    lines = groups_of(*at, state.sort, skip=since)
    groups = [GroupView(line, heat.scale) for line in lines]
    listed = GroupList(groups=groups, since=since, count=len(numbers))
    if index is None:
        return listed, None
    line = next((line for line in lines if line.number == wanted), None)
    line = line or groups_of(*at, state.sort, skip=index, limit=1)[0]
    prompt = prompt_of(session, line.prompt_id)
    return listed, Opened(
        group=GroupView(line, heat.scale),
        index=index,
        earlier=numbers[index - 1] if index else None,
        later=numbers[index + 1] if index + 1 < len(numbers) else None,
        prompt=PromptView(prompt),
        answers=[
            AnswerView(row, heat.scale, whole=row.id == state.full)
            for row in answers_of(session, line.id, state.by)
        ],
        occasions=occasions_of(session, line.prompt_id),
    )


def _listing(session: Session, heat: Heat, place: Place, state: State) -> Listing:
    found = matching(
        session,
        state.run_id,
        state.kind,
        state.filters if state.listing else Filters(),
        update=None if state.scope == "run" else place.update,
        order=state.by,
        after=state.after,
    )
    lines = lines_of(session, [row.prompt_id for row in found.answers])
    views = [
        AnswerView(row, heat.scale, lines[row.prompt_id], whole=row.id == state.full)
        for row in found.answers
    ]
    return Listing(answers=views, after=found.after)
