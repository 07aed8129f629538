"""Nothing is lost where the server or a run's process is killed."""

from __future__ import annotations

import csv
import os
import signal

from playwright.sync_api import expect

from e2e.runs import write_run
from e2e.steps import run_row, start, status, wait_for_end, wait_for_update
from e2e.waiting import eventually

OFTEN = {"checkpoint.mode": "steps", "checkpoint.every_steps": 2, "checkpoint.keep": 3}


def shown_update(page):
    """The number in "update 12 of 60" at the top of the page."""
    words = page.locator("#run-head").inner_text()
    return int(words.partition("update ")[2].partition(" ")[0])


def test_a_run_goes_on_without_its_server_and_the_page_picks_it_up(own_server, tab, tmp_path):
    watch = tab(own_server)
    page = watch.page
    run_id = start(page, write_run(tmp_path / "run", {"grpo.updates": 5000}).dropped)
    wait_for_update(own_server, run_id, 2)
    page.evaluate("window.sameDocument = true")

    own_server.kill()
    killed_at = run_row(own_server, run_id).completed
    wait_for_update(own_server, run_id, killed_at + 3)  # it went on by itself
    expect(page.locator("#connection")).to_contain_text("Not connected")
    own_server.start()

    eventually(
        lambda: shown_update(page) > killed_at + 3, "newer updates in the page that was open"
    )
    expect(page.locator("#connection")).to_be_empty()
    expect(status(page)).to_have_text("running")
    assert page.evaluate("window.sameDocument"), "the page was loaded anew"

    # The new server can end what the old one has started.
    page.get_by_role("button", name="Stop").click()
    expect(status(page)).to_have_text("stopped")
    assert run_row(own_server, run_id).status == "stopped"
    eventually(lambda: not own_server.workers(), "the end of the run's processes")


def test_a_killed_run_is_interrupted_and_its_curve_goes_on_without_doubled_points(
    own_server, tab, tmp_path
):
    watch = tab(own_server)
    page = watch.page
    changes = {"grpo.updates": 14, "grpo.reward_command": ["python3", "reward.py"], **OFTEN}
    run_id = start(page, write_run(tmp_path / "run", changes).dropped)
    wait_for_update(own_server, run_id, 4)
    os.kill(run_row(own_server, run_id).pid, signal.SIGKILL)

    expect(status(page)).to_have_text("interrupted")
    eventually(lambda: not own_server.workers(), "the end of its reward program")
    page.get_by_role("button", name="Resume").click()
    expect(status(page)).to_have_text("completed", timeout=60_000)
    assert wait_for_end(own_server, run_id).completed == 14

    curve = page.request.get(f"/runs/{run_id}/metrics/data?name=reward/mean").json()["curves"][0]
    assert curve["updates"] == list(range(1, 15))
    lines = page.request.get(f"/runs/{run_id}/metrics/data.csv?name=reward/mean").text()
    rows = list(csv.DictReader(lines.splitlines()))
    assert [row["update"] for row in rows] == [str(n) for n in range(1, 15)]
    page.goto(f"/runs/{run_id}/metrics/table?name=reward/mean")
    expect(page.get_by_role("main").get_by_role("row")).to_have_count(15)  # and the head
    watch.assert_clean()
