"""Writing rows of a run into the tables, many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Table, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from app.store.models import Answer, Event, Group, Metric, MetricName, Prompt, Run, Segment, Update
from app.store.rows import GroupRow, Row, Rows
from app.store.unfinished import Place, untrain

_ASKED_AT_ONCE = 500


@dataclass(slots=True)
class Ids:
    """The ids of rows that were written before, by what names them."""

    prompts: dict[str, int] = field(default_factory=dict)
    metrics: dict[str, int] = field(default_factory=dict)

    def copy(self) -> Ids:
        return Ids(dict(self.prompts), dict(self.metrics))

    def take(self, other: Ids) -> None:
        self.prompts, self.metrics = other.prompts, other.metrics


def write_rows(session: Session, place: Place, batch: Sequence[Rows], ids: Ids) -> None:
    """``ids`` grows by what is written; where the transaction fails, so does what it says."""
    _groups(session, place, [group for rows in batch for group in rows.groups], ids)
    _metrics(session, place, [metric for rows in batch for metric in rows.metrics], ids)
    for model, told in (
        (Update, [row for rows in batch for row in rows.updates]),
        (Event, [row for rows in batch for row in rows.events]),
    ):
        _many(session, model, place(told))
    for rows in batch:
        if rows.unfinished is not None:
            untrain(session, place, rows.unfinished)
        if rows.segment:
            session.execute(
                update(Segment).where(Segment.id == place.segment_id).values(rows.segment)
            )


def update_run(session: Session, run_id: int, values: Row, *, pulse: bool) -> None:
    # On the tables themselves, here and below: what the mapper adds takes as long as the rest.
    runs: Any = Run.__table__
    changed = values | ({"pulse": runs.c.pulse + 1} if pulse else {})
    session.connection().execute(update(runs).where(runs.c.id == run_id).values(changed))


def _groups(session: Session, place: Place, groups: Sequence[GroupRow], ids: Ids) -> None:
    if not groups:
        return
    _prompts(session, place.run_id, [group.prompt for group in groups], ids)
    rows = [g.group | {"prompt_id": ids.prompts[g.prompt["key"]]} for g in groups]
    table: Any = Group.__table__
    adding = insert(table).returning(table.c.id, sort_by_parameter_order=True)
    numbers = session.connection().execute(adding, place(rows)).scalars().all()
    answers = [
        answer | {"group_id": number}
        for number, group in zip(numbers, groups, strict=True)
        for answer in group.answers
    ]
    _many(session, Answer, place(answers))


def _prompts(session: Session, run_id: int, prompts: Sequence[Row], ids: Ids) -> None:
    new = {prompt["key"]: prompt for prompt in prompts if prompt["key"] not in ids.prompts}
    keys = list(new)
    for start in range(0, len(keys), _ASKED_AT_ONCE):  # those that an earlier segment wrote
        some = keys[start : start + _ASKED_AT_ONCE]
        known = select(Prompt.key, Prompt.id).where(Prompt.run_id == run_id, Prompt.key.in_(some))
        ids.prompts.update((key, number) for key, number in session.execute(known))
    missing = [prompt for key, prompt in new.items() if key not in ids.prompts]
    if missing:
        adding = insert(Prompt).returning(Prompt.key, Prompt.id)
        rows = [prompt | {"run_id": run_id} for prompt in missing]
        ids.prompts.update((key, number) for key, number in session.execute(adding, rows))


def _metrics(
    session: Session, place: Place, metrics: Sequence[tuple[str, int, float | None]], ids: Ids
) -> None:
    names = {name for name, _, _ in metrics} - ids.metrics.keys()
    if names:
        ids.metrics.update(_metric_names(session, sorted(names)))
    _many(
        session,
        Metric,
        place(
            {"name_id": ids.metrics[name], "update": number, "value": value}
            for name, number, value in metrics
        ),
    )


def _metric_names(session: Session, names: Sequence[str]) -> dict[str, int]:
    # Another run may add the same names at this moment.
    dialect = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
    adding = dialect.insert(MetricName).on_conflict_do_nothing(index_elements=["name"])
    session.execute(adding, [{"name": name} for name in names])
    found = select(MetricName.name, MetricName.id).where(MetricName.name.in_(names))
    return {name: number for name, number in session.execute(found)}  # noqa: C416  rows


def _many(session: Session, model: Any, rows: Sequence[Row]) -> None:  # noqa: ANN401
    if rows:
        table: Table = model.__table__
        session.connection().execute(insert(table), rows)
