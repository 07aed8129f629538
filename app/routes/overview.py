"""How a run is doing, at a glance."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter

from app.routes.diagnosis import Statement, statements
from app.routes.metrics import Card, card_of
from app.routes.run_header import RunPage, find_run, header_of
from app.routes.tiles import Tile, fine_at_zero, tiles
from app.server.pages import StoreDep, page
from app.store.models import Run
from app.store.queries.metrics import LastValue
from app.store.queries.overview import Latest, Numbers, latest_answers, numbers_of
from trainer.health.headline import headline_of
from trainer.health.resolve import guide_for
from trainer.health.rules import Metric

router = APIRouter()

_SECOND = {"sft": "optimizer/grad_norm"}
_TITLES = {
    "policy/clip_fraction": "Clip fraction",
    "optimizer/grad_norm": "Gradient norm",
}


@dataclass(frozen=True, slots=True)
class Headline:
    """A curve, with the marks of ``held_out`` (a metric's name, or empty) on it. ``excuse`` is said
    of a value outside the healthy band that is fine."""

    title: str
    card: Card
    held_out: str
    last_evaluation: tuple[int, float] | None
    excuse: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewPage(RunPage):
    """``audited`` are the measures of the reward-hacking audit that are over their limit."""

    tiles: list[Tile]
    headlines: list[Headline]
    statements: list[Statement]
    audited: list[str]
    latest: Latest | None


@page(router, "/runs/{run_id:id}", "overview/page.html")
def overview(run_id: int, store: StoreDep) -> OverviewPage:
    with store.read() as session:
        run = find_run(session, run_id)
        main = headline_of(run.algorithm)
        numbers = numbers_of(session, run_id, main.name, main.held_out)
        latest = latest_answers(session, run_id)
    guide = {entry.name: entry for entry in guide_for(run.algorithm, run.params)}
    return OverviewPage(
        title=run.name,
        run=header_of(run),
        tab="overview",
        tiles=tiles(run, numbers, guide),
        headlines=headlines(run, numbers, guide),
        statements=statements(run, numbers, guide),
        audited=list(run.audited),
        latest=latest,
    )


def headlines(run: Run, numbers: Numbers, guide: dict[str, Metric]) -> list[Headline]:
    main = headline_of(run.algorithm)
    second = _SECOND.get(run.algorithm, "policy/clip_fraction")
    return [
        Headline(
            main.title if name == main.name else _TITLES[name],
            card_of(
                run.algorithm,
                LastValue(name, run.completed, numbers.last.get(name)),
                guide.get(name),
            ),
            main.held_out if name == main.name else "",
            numbers.evaluations[-1] if name == main.name and numbers.evaluations else None,
            fine_at_zero(name, run, numbers, guide),
        )
        for name in (main.name, second)
    ]
