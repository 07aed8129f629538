"""Every page that there is, as addresses under a run."""

from __future__ import annotations

from contextlib import closing

from playwright.sync_api import Page, expect
from sqlalchemy import select

from app.store.models import Answer
from e2e.runs import WORD
from e2e.server import Server

PAGES = (
    "/",
    "/?q={run}",
    "/runs/new",
    "/runs/new?clone={run}",
    "/runs/{run}",
    "/runs/{run}/metrics",
    "/runs/{run}/metrics?x=time&smooth=0.9&log=true",
    "/runs/{run}/metrics/table?name=reward/mean",
    "/runs/{run}/trajectories",
    "/runs/{run}/trajectories?scope=run&by=reward",
    f"/runs/{{run}}/trajectories?q={WORD}",
    "/runs/{run}/trajectories?update=1&compare={first}&with={second}",
    "/runs/{run}/trajectories?update=1&full={first}",
    "/runs/{run}/config",
    "/runs/{run}/config?against={other}",
    "/runs/{run}/journal",
    "/runs/{run}/artifacts",
    "/runs/{run}/delete",
    "/compare",
    "/compare?run={run}&run={other}",
    "/chat",
    "/chat?run={run}",
)
OF_EACH_KIND = (
    "/runs/{run}",
    "/runs/{run}/metrics",
    "/runs/{run}/trajectories",
    "/runs/{run}/config",
    "/runs/{run}/journal",
)
"""What looks different for runs of another algorithm."""
MISSING = "/runs/999999"


def address(server: Server, page: str, run_id: int, other: int) -> str:
    """``page`` of a run; ``other`` is the one that it is compared with."""
    first, second = two_answers(server, run_id) if "{first}" in page else (0, 0)
    return page.format(run=run_id, other=other, first=first, second=second)


def two_answers(server: Server, run_id: int) -> tuple[int, int]:
    """Of the first group."""
    with closing(server.store()) as store, store.read() as session:
        of_run = select(Answer.id).where(Answer.run_id == run_id).order_by(Answer.id).limit(2)
        first, second = session.scalars(of_run)
    return first, second


def visit(page: Page, where: str) -> None:
    """Go there, and wait until its scripts have done what they do at first."""
    answer = page.goto(where)
    assert answer is not None
    assert answer.status == (404 if where == MISSING else 200), f"{where}: {answer.status}"
    expect(page.get_by_role("main")).not_to_be_empty()
    settle(page)


def settle(page: Page) -> None:
    """All charts in view are drawn, and nothing that the page asked for is outstanding."""
    page.wait_for_function(_SETTLED)


_SETTLED = """() => document.readyState === "complete"
  && performance.getEntriesByType("resource").every((entry) => entry.responseEnd > 0)
  && [...document.querySelectorAll("figure.chart, #compare-chart")].every((chart) => {
    const { top, bottom } = chart.getBoundingClientRect();
    return bottom < 0 || top > innerHeight || !chart.checkVisibility()
      || chart.querySelector("canvas")
      || chart.querySelector(".notice, .canvas > .empty")?.textContent;
  })"""


def open_everything(page: Page) -> None:
    """Unfold what is folded, and point at the first charts."""
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    for chart in page.locator("figure.chart:visible").all()[:2]:
        # A chart that is far from the window gives its canvas back, and takes a new one here.
        chart.scroll_into_view_if_needed()
        chart.locator(".u-over").hover()
    settle(page)
