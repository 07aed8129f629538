"""The list of runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, HTTPException, Query

from app.routes.run_header import TONES
from app.server.pages import PageContext, StoreDep, WholeNumber, Words, page
from app.store.queries.changes import mark_of
from app.store.queries.runs import RunRow, Sort, count_by_status, list_runs
from app.store.status import ENDED, GROUPS, OPEN
from trainer.health.headline import headline_of

router = APIRouter()

PER_PAGE = 50
SPARK_WIDTH = 120
SPARK_HEIGHT = 26
_MARGIN = 2.0
_DECIMALS = 1
STATUSES: tuple[tuple[str, str], ...] = (
    ("", "all"),
    ("running", "running"),
    ("queued", "queued"),
    ("finished", "finished"),
    ("failed", "failed"),
)
_KNOWN = tuple(dict.fromkeys((*GROUPS, *OPEN, *ENDED)))


@dataclass(frozen=True, slots=True)
class Line:
    """A run as the list shows it. ``spark`` is the path of an SVG; ``seconds`` are taken so far."""

    run: RunRow
    tone: str
    progress: float
    spark: str
    seconds: float | None
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class Choice:
    """A filter with its address and how many runs it leaves."""

    label: str
    count: int
    address: str
    current: bool


@dataclass(frozen=True, slots=True)
class Order:
    """A way to sort, with its address."""

    sort: Sort
    address: str
    current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsPage(PageContext):
    """``earlier`` and ``later`` are the addresses of the pages around this one; ``mark`` names the
    state of the list; ``measured`` says what its curves are of; ``running`` and ``queued`` are of
    all runs, filtered or not."""

    lines: list[Line]
    total: int
    every: int
    first: int
    text: str
    status: str
    sort: Sort
    choices: list[Choice]
    orders: dict[str, Order]
    earlier: str | None
    later: str | None
    mark: str
    measured: str
    running: int
    queued: int


@page(router, "/", "runs/page.html", twin="/runs.json")
def runs(
    store: StoreDep,
    text: Annotated[Words, Query(alias="q", max_length=200)] = "",
    status: Annotated[Words, Query(max_length=20)] = "",
    sort: Sort = "newest",
    offset: WholeNumber = 0,
) -> RunsPage:
    if status and status not in _KNOWN:
        raise HTTPException(422, f"status: {status!r} is none of {', '.join(_KNOWN)}.")
    now = time.time()
    with store.read() as session:
        counts = count_by_status(session)
        found = list_runs(
            session, text=text, status=status, sort=sort, limit=PER_PAGE, offset=offset
        )
        mark = mark_of(session, None)
    sizes = {name: sum(counts.get(s, 0) for s in GROUPS.get(name, (name,))) for name, _ in STATUSES}
    sizes[""] = sum(counts.values())
    return RunsPage(
        title="Runs",
        section="runs",
        lines=[line_of(row, now) for row in found.rows],
        total=found.total,
        every=sizes[""],
        first=offset + 1,
        text=text,
        status=status,
        sort=sort,
        choices=[
            Choice(label, sizes[name], address(text, name, sort), name == status)
            for name, label in STATUSES
        ],
        orders={
            name: Order(name, address(text, status, name), name == sort)
            for name in ("newest", "oldest", "name", "reward", "longest")
        },
        earlier=address(text, status, sort, max(0, offset - PER_PAGE)) if offset else None,
        later=address(text, status, sort, offset + PER_PAGE) if found.has_more else None,
        mark=mark,
        measured=" or ".join(dict.fromkeys(headline_of(r.algorithm).word for r in found.rows)),
        running=sizes["running"],
        queued=sizes["queued"],
    )


def line_of(row: RunRow, now: float) -> Line:
    return Line(
        run=row,
        tone=TONES.get(row.status, "quiet"),
        progress=row.progress,
        spark=spark_path(row.sparkline),
        seconds=row.seconds_taken(now),
        seconds_left=row.seconds_left,
    )


def address(text: str, status: str, sort: str, offset: int = 0) -> str:
    """That of a list, with nothing in it that goes without saying."""
    state = {
        "q": text,
        "status": status,
        "sort": "" if sort == "newest" else sort,
        "offset": offset or "",
    }
    query = urlencode({name: value for name, value in state.items() if value})
    return f"/?{query}" if query else "/"


def spark_path(
    values: Sequence[float | None], width: float = SPARK_WIDTH, height: float = SPARK_HEIGHT
) -> str:
    """The ``d`` of an SVG path through ``values``, the lowest at the bottom; where one is missing
    the line is broken, and one that stands alone is a dot."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    step = width / max(1, len(values) - 1)
    parts: list[str] = []
    drawing = False
    for place, value in enumerate(values):
        if value is None:
            drawing = False
            continue
        share = (value - low) / (high - low) if high > low else 0.5
        x = round(place * step, _DECIMALS)
        y = round(height - _MARGIN - share * (height - 2 * _MARGIN), _DECIMALS)
        parts.append(f"{'L' if drawing else 'M'}{x:g},{y:g}")
        alone = not drawing and (place + 1 == len(values) or values[place + 1] is None)
        if alone:
            parts.append("h0.1")
        drawing = True
    return "".join(parts)
