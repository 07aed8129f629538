"""Ten people look at a fast run, and nothing grows but the run."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from e2e.runs import write_run
from e2e.server import Server
from e2e.steps import run_row, start, status, wait_for_end, wait_for_update
from e2e.waiting import eventually
from e2e.watched_page import Watch

LOOKED_AT = (
    "/",
    "/runs/{run}",
    "/runs/{run}/metrics",
    "/runs/{run}/metrics?filter=reward",
    "/runs/{run}/trajectories",
    "/runs/{run}/trajectories?follow=1",
    "/runs/{run}/journal",
    "/runs/{run}/artifacts",
    "/runs/{run}/config",
    "/runs/{run}",
)
MIB = 2**20
SERVER_MAY_GROW = 24 * MIB
PAGE_MAY_GROW = 6 * MIB
WRITE_AHEAD_LIMIT = 40 * MIB


def heaps(watches: list[Watch]) -> list[int]:
    return [watch.heap_bytes() for watch in watches]


def look_on(server: Server, tab, folder, *, warm: int, updates: int, seconds: float) -> None:
    """Open ten tabs at a run, and compare what they and the server hold at update ``warm`` with
    what they hold ``updates`` later."""
    first = tab(server)
    changes = {"grpo.updates": 100_000, "grpo.prompts_per_update": 1}
    run_id = start(first.page, write_run(folder, changes).dropped)
    watches = [first, *(tab(server) for _ in LOOKED_AT[1:])]
    for watch, where in zip(watches, LOOKED_AT, strict=True):
        watch.page.goto(where.format(run=run_id))
    live = [w for w in watches if w.page.locator("body[data-live]").count()]
    assert len(live) >= 8
    eventually(lambda: all(w.open_streams() == 1 for w in live), "one event stream for each tab")

    wait_for_update(server, run_id, warm, seconds)
    before, resident = heaps(watches), server.resident_bytes()
    wait_for_update(server, run_id, run_row(server, run_id).completed + updates, seconds)
    after = heaps(watches)

    assert server.resident_bytes() - resident < SERVER_MAY_GROW
    grown = [(b - a) // 1024 for a, b in zip(before, after, strict=True)]
    assert max(grown) * 1024 < PAGE_MAY_GROW, f"KiB by which each page grew: {grown}"
    assert server.write_ahead_bytes() < WRITE_AHEAD_LIMIT
    assert [w.open_streams() for w in live] == [1] * len(live)
    told = run_row(server, run_id).completed
    eventually(lambda: shown(watches[1]) >= told, "the pages are not behind")
    for watch in watches:
        watch.assert_clean()

    watches[1].page.get_by_role("button", name="Stop").click()
    expect(status(watches[1].page)).to_have_text("stopped")
    wait_for_end(server, run_id)
    for watch in watches:
        watch.page.context.close()
    eventually(lambda: server.connections() == 0, "no connection is left open")


def shown(watch: Watch) -> int:
    """The number in "update 12 of 60" at the top of the page."""
    words = watch.page.locator("#run-head").inner_text()
    return int(words.partition("update ")[2].partition(" ")[0].replace(",", ""))


def test_ten_tabs_at_a_fast_run_hold_no_more_after_a_while(own_server, tab, tmp_path):
    look_on(own_server, tab, tmp_path / "run", warm=15, updates=25, seconds=60)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_ten_tabs_at_a_fast_run_hold_no_more_after_long(own_server, tab, tmp_path):
    look_on(own_server, tab, tmp_path / "run", warm=200, updates=2000, seconds=1500)
