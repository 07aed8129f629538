"""Lasting addresses of answers, and answers as files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException
from fastapi.responses import RedirectResponse, StreamingResponse
from sqlalchemy.orm import Session

from app.routes.reading.state import State, state_of
from app.routes.run_header import find_run
from app.server.pages import StoreDep, plain
from app.store.database import Store
from app.store.queries.answers import all_matching
from app.store.queries.places import place_of
from app.store.queries.trajectories import AnswerRow, find_answer, prompt_of

router = APIRouter()

_COLUMNS = (
    "update", "kind", "group", "member", "prompt_key", "prompt", "completion", "tokens",
    "truncated", "reward", "reward_raw", "judge_term", "judge_words", "parts", "advantage",
    "trained", "skip_reason", "audit", "duplicate", "id",
)  # fmt: skip
_FORMULA = ("=", "+", "-", "@", "\t", "\r")

Record = dict[str, Any]
StateDep = Annotated[State, Depends(state_of)]


@router.get("/runs/{run_id:int}/answers/{answer_id:int}")
def answer(run_id: int, answer_id: int, store: StoreDep) -> RedirectResponse:
    """To the place of the answer, which other segments or orders do not change."""
    with store.read() as session:
        find_run(session, run_id)
        found = find_answer(session, run_id, answer_id) if answer_id < 2**53 else None
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


@router.get("/runs/{run_id:int}/trajectories.csv")
def trajectories_csv(state: StateDep, store: StoreDep) -> StreamingResponse:
    return _file(store, state, "csv", "text/csv; charset=utf-8", _csv_lines)


@router.get("/runs/{run_id:int}/trajectories.jsonl")
def trajectories_jsonl(state: StateDep, store: StoreDep) -> StreamingResponse:
    return _file(store, state, "jsonl", "application/x-ndjson", _json_lines)


def _file(
    store: Store,
    state: State,
    ending: str,
    media_type: str,
    lines: Callable[[Iterator[Record]], Iterator[str]],
) -> StreamingResponse:
    """The answers that ``state`` selects, one after the other as they are read."""
    with store.read() as session:
        find_run(session, state.run_id)
    name = f"run-{state.run_id}-answers.{ending}"
    headers = {
        "content-disposition": f'attachment; filename="{name}"',
        "x-content-type-options": "nosniff",
    }
    return StreamingResponse(lines(_records(store, state)), media_type=media_type, headers=headers)


def _records(store: Store, state: State) -> Iterator[Record]:
    """In the order in which they were written: of the run, or of the open update (of one group,
    where one is open), as far as they pass the filters."""
    with store.read() as session:
        update = None
        if state.scope != "run":
            place = place_of(session, state.run_id, state.kind, state.update)
            if place is None:
                return
            update = place.update
        group = state.group if update is not None and not state.filters.on else None
        prompts: dict[int, tuple[str, list[Record]]] = {}
        for row in all_matching(session, state.run_id, state.kind, state.filters, update):
            if group is not None and row.group != group:
                continue
            if row.prompt_id not in prompts:
                prompts[row.prompt_id] = _prompt(session, row.prompt_id)
            yield _record(row, *prompts[row.prompt_id])


def _prompt(session: Session, number: int) -> tuple[str, list[Record]]:
    prompt = prompt_of(session, number)
    return prompt.key, [{"role": role, "content": content} for role, content in prompt.messages]


def _record(row: AnswerRow, key: str, messages: list[Record]) -> Record:
    """With the names of ``observe.jsonl`` for what is there too."""
    return {
        "update": row.update,
        "kind": row.kind,
        "group": row.group,
        "member": row.member,
        "prompt_key": key,
        "prompt": messages,
        "completion": row.text,
        "tokens": row.tokens,
        "truncated": row.truncated,
        "reward": row.reward,
        "reward_raw": row.reward_raw,
        "judge_term": row.judge_term,
        "judge_words": row.judge_words,
        "parts": dict(row.parts),
        "advantage": row.advantage,
        "trained": row.trained,
        "skip_reason": row.skip_reason,
        "audit": list(row.audit),
        "duplicate": row.duplicate,
        "id": row.id,
    }


def _json_lines(records: Iterator[Record]) -> Iterator[str]:
    for record in records:
        yield json.dumps(plain(record), ensure_ascii=False, allow_nan=False) + "\n"


def _csv_lines(records: Iterator[Record]) -> Iterator[str]:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, _COLUMNS)
    writer.writeheader()
    for record in records:
        yield _taken(buffer)
        writer.writerow({name: _cell(record[name]) for name in _COLUMNS})
    yield _taken(buffer)


def _taken(buffer: io.StringIO) -> str:
    words = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return words


def _cell(value: object) -> object:
    """A spreadsheet takes a text that begins like a formula for one, and answers are written by a
    model: such a text gets an apostrophe in front, unless it is a number."""
    if isinstance(value, list | dict):
        return json.dumps(plain(value), ensure_ascii=False)
    if not isinstance(value, str) or not value.startswith(_FORMULA) or _is_number(value):
        return value
    return f"'{value}"


def _is_number(words: str) -> bool:
    try:
        float(words)
    except ValueError:
        return False
    return "\n" not in words and "\t" not in words and "\r" not in words
