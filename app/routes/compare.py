"""Up to six runs side by side: one metric of all of them, and what they were told differently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from sqlalchemy.orm import Session

from app.jobs.differences import Difference, differences
from app.routes.metrics import Axis, axes_of
from app.server.pages import PageContext, StoreDep, WholeNumber, Words, page
from app.store.models import Run
from app.store.queries.compare import (
    Choice,
    Course,
    choices,
    course_of,
    metrics_of,
    values_at,
)
from trainer.health.headline import headline_of

router = APIRouter()

MOST_RUNS = 6
TABLE_ROWS = 24
DASHES = ("", "7 3", "2 3", "10 3 2 3", "14 4", "1 3")
"""Each run's line has a pattern beside its colour."""


@dataclass(frozen=True, slots=True)
class Compared:
    """``dash`` is in the units of SVG; ``without`` is the address of the page without this run.
    ``course`` is None where it has no number of the metric."""

    id: int
    name: str
    algorithm: str
    model: str
    status: str
    dash: str
    without: str
    course: Course | None


@dataclass(frozen=True, slots=True)
class TableRow:
    """The metric's values at an update, in the order of the runs; None where there is none."""

    update: int
    values: list[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparePage(PageContext):
    """``missing`` are runs that were asked for and are not there, ``left_out`` those that were one
    too many."""

    runs: list[Compared]
    missing: list[int]
    left_out: list[int]
    metric: str
    metrics: list[str]
    x: Axis
    axes: tuple[tuple[Axis, str], ...]
    rows: list[TableRow]
    differences: list[Difference]
    choices: list[Choice]
    most: int = MOST_RUNS
    title: str = "Compare"
    section: str = "compare"


@page(router, "/compare", "compare/page.html")
def compare(
    store: StoreDep,
    asked: Annotated[list[WholeNumber] | None, Query(alias="run", max_length=100)] = None,
    metric: Annotated[Words, Query(max_length=200)] = "",
    x: Axis = "update",
) -> ComparePage:
    wanted = list(dict.fromkeys(asked or ()))
    with store.read() as session:
        found = {number: session.get(Run, number) for number in wanted[:MOST_RUNS]}
        runs = [run for run in found.values() if run is not None and run.status != "draft"]
        names = metrics_of(session, [run.id for run in runs]) if runs else []
        shown = _shown(metric, names, runs)
        compared = [
            _compared(session, runs, run, place, shown, x) for place, run in enumerate(runs)
        ]
        return ComparePage(
            runs=compared,
            missing=[number for number in found if number not in {run.id for run in runs}],
            left_out=wanted[MOST_RUNS:],
            metric=shown,
            metrics=names,
            x=x,
            axes=axes_of(*(run.algorithm for run in runs)),
            rows=_rows(session, compared, shown),
            differences=differences([(run.algorithm, run.params) for run in runs]),
            choices=choices(session),
        )


def _shown(metric: str, names: Sequence[str], runs: Sequence[Run]) -> str:
    """The metric that was asked for, or what the first run is about, or one that there is."""
    if metric in names:
        return metric
    main = headline_of(runs[0].algorithm if runs else "").name
    return main if main in names or not names else names[0]


def _compared(
    session: Session, runs: Sequence[Run], run: Run, place: int, metric: str, x: Axis
) -> Compared:
    others = [("run", other.id) for other in runs if other is not run]
    return Compared(
        id=run.id,
        name=run.name,
        algorithm=run.algorithm,
        model=run.model,
        status=run.status,
        dash=DASHES[place],
        without="/compare?" + urlencode([*others, ("metric", metric), ("x", x)]),
        course=course_of(session, run.id, metric),
    )


def _rows(session: Session, runs: Sequence[Compared], metric: str) -> list[TableRow]:
    spans = [run.course for run in runs if run.course is not None]
    if not spans:
        return []
    updates = _some(min(span.first for span in spans), [span.last for span in spans])
    columns = [values_at(session, run.id, metric, updates) for run in runs]
    rows = [TableRow(update, [column.get(update) for column in columns]) for update in updates]
    return [row for row, update in zip(rows, updates, strict=True) if _any_has(columns, update)]


def _any_has(columns: Sequence[dict[int, float | None]], update: int) -> bool:
    return any(update in column for column in columns)


def _some(first: int, lasts: Sequence[int]) -> list[int]:
    """About `TABLE_ROWS` round numbers from ``first`` on, and the last update of each run."""
    step = next(
        size * 10**power
        for power in range(12)
        for size in (1, 2, 5)
        if (max(lasts) - first) / (size * 10**power) <= TABLE_ROWS
    )
    round_ones = range(first - first % step, max(lasts) + 1, step)
    return sorted({first, *lasts, *(update for update in round_ones if update >= first)})
