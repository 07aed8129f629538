"""Answers that fit a description, over one update or the whole run, a page at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Text, and_, cast, or_, select, true
from sqlalchemy.orm import Session

from app.store.database import Store
from app.store.models import Answer, Group
from app.store.queries.trajectories import AnswerOrder, AnswerRow, Kind, answer_rows, as_row
from app.store.visible import visible_in

PAGE = 50
_CHUNK = 500


@dataclass(frozen=True, slots=True)
class Filters:
    """``low`` and ``high`` are rewards, both included. ``skip`` is a reason for not being trained
    on. ``audit`` is a flag, or ``any``. What is None, or False, takes everything."""

    low: float | None = None
    high: float | None = None
    trained: bool = False
    truncated: bool = False
    skip: str | None = None
    audit: str | None = None

    @property
    def on(self) -> bool:
        return self != Filters()


@dataclass(frozen=True, slots=True)
class Page:
    """``after`` is where the next page begins, None on the last."""

    answers: tuple[AnswerRow, ...]
    after: str | None


def matching(
    session: Session,
    run_id: int,
    kind: Kind,
    filters: Filters,
    *,
    update: int | None = None,
    order: AnswerOrder = "reward",
    after: str | None = None,
    limit: int = PAGE,
) -> Page:
    """Answers that pass ``filters``, of one update or (None) of all; highest first. ``after`` is
    what the page before returned. Raises ValueError for another one."""
    value = {"reward": Answer.reward, "advantage": Answer.advantage, "length": Answer.tokens}[order]
    chosen = (
        select(Answer.id)
        .where(*_conditions(session, run_id, kind, filters, update))
        .order_by(value.desc(), Answer.id.desc())
        .limit(limit + 1)
    )
    if after is not None:
        last, number = _cursor(after)
        chosen = chosen.where(or_(value < last, and_(value == last, Answer.id < number)))
        chosen = chosen.where(value <= last)  # lets an index on the value begin there
    numbers = list(session.scalars(chosen))
    rows = _rows(session, numbers[:limit])
    if len(numbers) <= limit or not rows:
        return Page(rows, None)
    return Page(rows, f"{getattr(rows[-1], value.key)!r}_{rows[-1].id}")


def all_matching(
    store: Store, run_id: int, kind: Kind | None, filters: Filters, update: int | None = None
) -> Iterator[tuple[AnswerRow, ...]]:
    """The same answers (of both kinds with None), all of them, in the order in which they were
    written, some at a time. Between two pieces no session is open: however slowly they are taken,
    nothing waits for it."""
    last = 0
    while True:
        with store.read() as session:
            conditions = _conditions(session, run_id, kind, filters, update)
            chosen = select(Answer.id).where(*conditions, Answer.id > last)
            numbers = list(session.scalars(chosen.order_by(Answer.id).limit(_CHUNK)))
            rows = _rows(session, numbers)
        if not numbers:
            return
        yield rows
        last = numbers[-1]


def _rows(session: Session, numbers: list[int]) -> tuple[AnswerRow, ...]:
    """The answers with these ids, in their order."""
    rows = session.execute(answer_rows().where(Answer.id.in_(numbers)))
    found = {row[0].id: as_row(*row) for row in rows}
    return tuple(found[number] for number in numbers)


def _cursor(after: str) -> tuple[float, int]:
    value, _, number = after.partition("_")
    last = float(value)
    if not math.isfinite(last):
        raise ValueError(f"{after!r} is no place in a list of answers")
    return last, int(number)


def _conditions(
    session: Session, run_id: int, kind: Kind | None, filters: Filters, update: int | None
) -> list[ColumnElement[bool]]:
    if update is None:
        conditions = [visible_in(session, run_id, Answer)]
        # Answers to held-out prompts, and no others, have this reason.
        held_out = Answer.skip_reason == "evaluation"
        if kind is not None:
            others = or_(Answer.skip_reason.is_(None), ~held_out)
            conditions.append(held_out if kind == "evaluation" else others)
    else:
        # By ids: nothing else keeps the planner from reading the whole run.
        groups = select(Group.id).where(
            visible_in(session, run_id, Group),
            Group.kind == kind if kind is not None else true(),
            Group.update == update,
        )
        conditions = [Answer.group_id.in_(session.scalars(groups).all())]
    if filters.low is not None:
        conditions.append(Answer.reward >= filters.low)
    if filters.high is not None:
        conditions.append(Answer.reward <= filters.high)
    if filters.trained:
        conditions.append(Answer.trained.is_(True))
    if filters.truncated:
        conditions.append(Answer.truncated.is_(True))
    if filters.skip is not None:
        conditions.append(Answer.skip_reason == filters.skip)
    if filters.audit is not None:
        flags = cast(Answer.audit, Text)
        conditions.append(
            flags != "[]"
            if filters.audit == "any"
            else flags.contains(f'"{filters.audit}"', autoescape=True)
        )
    return conditions
