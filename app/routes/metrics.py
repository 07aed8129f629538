"""The numbers of a run: a chart for each, and the data behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import median
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from sqlalchemy.orm import Session

from app.routes.advice import Advice, advice_on
from app.routes.run_header import RunPage, find_run, header_of
from app.server.downloads import attachment
from app.server.pages import StoreDep, WholeNumber, Words, page, plain
from app.store.export import numbers_csv
from app.store.models import Run
from app.store.queries.markers import began, markers_of
from app.store.queries.metrics import (
    LastValue,
    MetricRow,
    curves_of,
    last_values,
    newest_rows,
    recent_values,
)
from app.store.queries.series import AllSeries
from trainer.health.headline import headline_of
from trainer.health.resolve import guide_for
from trainer.health.rules import Metric as GuideEntry

router = APIRouter()

Axis = Literal["update", "step", "tokens", "time"]
_AXES: tuple[tuple[Axis, str], ...] = (
    ("update", "update"),
    ("step", "optimizer step"),
    ("tokens", "tokens"),
    ("time", "time"),
)
MARKERS = (("evaluation", "evaluations"), ("checkpoint", "checkpoints"), ("resume", "resumes"))
MOST_NAMES = 40
TABLE_ROWS = 200
_START = 5


def _series(request: Request) -> AllSeries:
    series: AllSeries = request.app.state.series
    return series


SeriesDep = Annotated[AllSeries, Depends(_series)]
NameDep = Annotated[list[Words], Query(alias="name", min_length=1, max_length=MOST_NAMES)]


@dataclass(frozen=True, slots=True)
class View:
    """How the charts are looked at; all of it is in the address."""

    x: Axis
    smooth: float
    log: bool
    first: int | None
    last: int | None
    filter: str
    marks: tuple[str, ...]
    """Which kinds of marker are drawn."""


@dataclass(frozen=True, slots=True)
class Card:
    """One metric. ``low`` and ``high`` bound its healthy band from the ``after``-th update on;
    ``listed`` tells whether the filter lets it through."""

    name: str
    short: str
    update: int
    value: float | None
    means: str
    healthy: str
    low: float | None
    high: float | None
    after: int
    advice: list[Advice]
    listed: bool = True


@dataclass(frozen=True, slots=True)
class Family:
    """The metrics that have a prefix in common."""

    prefix: str
    cards: list[Card]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsPage(RunPage):
    view: View
    axes: tuple[tuple[Axis, str], ...]
    markers: tuple[tuple[str, str], ...]
    origin: float | None
    """When the first update ended: where the axis of time begins, in Unix seconds."""
    families: list[Family]


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePage(RunPage):
    """The newest rows of one metric."""

    name: str
    rows: list[MetricRow]


@page(router, "/runs/{run_id:id}/metrics", "metrics/page.html")
def metrics(
    run_id: int,
    store: StoreDep,
    x: Axis = "update",
    smooth: Annotated[float, Query(ge=0, lt=1)] = 0.6,
    log: bool = False,
    first: Annotated[WholeNumber | None, Query(alias="from")] = None,
    last: Annotated[WholeNumber | None, Query(alias="to")] = None,
    text: Annotated[Words, Query(alias="filter", max_length=200)] = "",
    marks: Annotated[list[str] | None, Query(max_length=8)] = None,
) -> MetricsPage:
    shown = tuple(kind for kind, _ in MARKERS if marks is None or kind in marks)
    view = View(x, smooth, log, first, last, text, shown)
    with store.read() as session:
        run = find_run(session, run_id)
        values = last_values(session, run_id)
        return MetricsPage(
            title=f"Metrics of {run.name}",
            run=header_of(run),
            tab="metrics",
            view=view,
            axes=axes_of(run.algorithm),
            markers=MARKERS,
            origin=began(session, run_id),
            families=families_of(session, run, values, text),
        )


def axes_of(*algorithms: str) -> tuple[tuple[Axis, str], ...]:
    """What charts of runs of these algorithms may have across, with its name."""
    names = {headline_of(algorithm).tokens for algorithm in algorithms}
    tokens = names.pop() if len(names) == 1 else "tokens"
    return tuple((axis, tokens if axis == "tokens" else name) for axis, name in _AXES)


def families_of(
    session: Session, run: Run, values: list[LastValue], text: str = ""
) -> list[Family]:
    """The metrics by prefix, the reward's first; ``text`` lists those whose name has one of its
    words."""
    words = text.lower().split()
    entries = {entry.name: entry for entry in guide_for(run.algorithm, run.params)}
    cards = [
        replace(
            card_of(
                run.algorithm,
                value,
                entries.get(value.name),
                _start(session, run.id, entries, value),
            ),
            listed=not words or any(word in value.name.lower() for word in words),
        )
        for value in sorted(values, key=lambda value: _order(value.name))
    ]
    return [
        Family(prefix, list(some))
        for prefix, some in groupby(cards, lambda card: card.name.partition("/")[0])
    ]


def card_of(
    algorithm: str, value: LastValue, entry: GuideEntry | None, start: float | None = None
) -> Card:
    """``start`` is what the metric began with, for the bands that are a part of it."""
    prefix, _, rest = value.name.partition("/")
    band = entry.healthy if entry else None
    low = band.low if band else None
    if band and band.low_of_start is not None and start is not None:
        low = band.low_of_start * start
    high = band.high if band else None
    bounded = isinstance(high, float) or (low is not None and low != 0.0)
    return Card(
        name=value.name,
        short=(rest or prefix).replace("_", " "),
        update=value.update,
        value=value.value,
        means=entry.means if entry else "",
        healthy=band.text if band else "",
        low=low if bounded else None,  # above 0 alone would shade all of the chart
        high=high if isinstance(high, float) else None,
        after=band.after if band else 0,
        advice=advice_on(entry, algorithm) if entry else [],
    )


@router.get("/runs/{run_id:id}/metrics/data")
def data(
    run_id: int,
    store: StoreDep,
    names: NameDep,
    series: SeriesDep,
    first: Annotated[WholeNumber | None, Query(alias="from")] = None,
    last: Annotated[WholeNumber | None, Query(alias="to")] = None,
    points: Annotated[int, Query(ge=16, le=5000)] = 600,
    after: WholeNumber | None = None,
) -> Response:
    """The curves of ``names``: whole and thinned, or what came after the cursor."""
    with store.read() as session:
        find_run(session, run_id)
        found = curves_of(
            session, run_id, names, first=first, last=last, points=points, after=after, kept=series
        )
    return JSONResponse(
        {
            "curves": [
                {name: getattr(curve, name) for name in curve.__dataclass_fields__}
                for curve in found.curves
            ],
            "last_id": found.last_id,
            "segment": found.segment,
        }
    )


@router.get("/runs/{run_id:id}/metrics/markers")
def markers(run_id: int, store: StoreDep) -> Response:
    with store.read() as session:
        find_run(session, run_id)
        return JSONResponse(plain(markers_of(session, run_id)))


@page(router, "/runs/{run_id:id}/metrics/table", "metrics/table.html")
def table(run_id: int, store: StoreDep, name: Words) -> TablePage:
    """The newest numbers of one metric, as a page of their own; the charts take the table out."""
    with store.read() as session:
        run = find_run(session, run_id)
        return TablePage(
            title=f"{name} of {run.name}",
            run=header_of(run),
            tab="metrics",
            name=name,
            rows=newest_rows(session, run_id, name, TABLE_ROWS),
        )


@router.get("/runs/{run_id:id}/metrics/data.csv")
def data_as_csv(run_id: int, store: StoreDep, names: NameDep) -> Response:
    """Every number of some metrics, one after the other."""
    with store.read() as session:
        find_run(session, run_id)
    name = f"run-{run_id}-numbers.csv"
    lines = numbers_csv(store, run_id, names)
    return StreamingResponse(
        lines, media_type="text/csv; charset=utf-8", headers=attachment(name, name)
    )


def _start(
    session: Session, run_id: int, entries: Mapping[str, GuideEntry], value: LastValue
) -> float | None:
    """The median of the first values, where the guide holds the metric against it."""
    entry = entries.get(value.name)
    if entry is None or entry.healthy.low_of_start is None:
        return None
    first = recent_values(session, run_id, value.name, _START, oldest=True)
    known = [number for _, number in first if number is not None]
    return median(known) if known else None


_FIRST = ("reward", "sft", "eval", "policy", "batch", "critic", "completions", "sampler")


def _order(name: str) -> tuple[int, str, bool, str]:
    prefix = name.partition("/")[0]
    rank = _FIRST.index(prefix) if prefix in _FIRST else len(_FIRST)
    return rank, prefix, not name.endswith("/mean"), name
