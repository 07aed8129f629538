"""Every page does its work where JavaScript is switched off: it is read, links lead on, and forms
are sent."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from e2e.pages import PAGES, address
from e2e.runs import write_run
from e2e.steps import run_in_address, run_row, status
from e2e.waiting import eventually


@pytest.fixture
def plain(server, tab):
    """A tab without scripts."""
    return tab(server, java_script_enabled=False).page


@pytest.mark.parametrize("page", PAGES)
def test_there_is_something_to_read_on(page, server, plain, finished_run, hostile_run):
    answer = plain.goto(address(server, page, finished_run, hostile_run))
    assert answer.status == 200
    expect(plain.get_by_role("heading", level=1).first).to_be_visible()
    main = plain.get_by_role("main").inner_text()
    assert len(main) > 60
    assert "Loading" not in main


def test_a_run_is_read_from_the_list_down_to_two_answers_side_by_side(plain, finished_run):
    plain.goto("/")
    plain.get_by_role("link", name="finished", exact=True).click()
    expect(status(plain)).to_have_text("completed")

    plain.get_by_role("link", name="Metrics").click()
    plain.get_by_role("link", name="reward/mean", exact=True).click()
    expect(plain.get_by_role("row")).to_have_count(7)  # six updates under a head

    plain.get_by_role("link", name="Trajectories").click()
    plain.get_by_role("link", name=re.compile("^update 2:")).first.click()
    expect(plain.get_by_role("main")).to_contain_text("Update 2")
    answers = plain.locator("#detail article")
    answers.nth(0).get_by_role("link", name="Compare").click()
    answers.nth(1).get_by_role("link", name="Compare with it").click()
    expect(plain.get_by_role("article", name="Second answer")).to_be_visible()
    assert re.search(r"compare=\d+&with=\d+", plain.url)


def test_answers_are_searched_and_filtered(plain, finished_run):
    plain.goto(f"/runs/{finished_run}/trajectories")
    plain.get_by_role("searchbox").fill("add")
    plain.keyboard.press("Enter")
    plain.wait_for_url("**q=add*")
    expect(plain.get_by_role("main")).to_contain_text(re.compile("add", re.IGNORECASE))


def test_a_run_is_started_and_stopped(server, plain, tmp_path):
    files = write_run(tmp_path / "run", {"grpo.updates": 5000}, name="without scripts")
    plain.goto("/runs/new")
    plain.get_by_label("Drop the TOML file").set_input_files(files.dropped)
    plain.get_by_role("button", name="Check").click()
    again = plain.get_by_role("link", name="Look again")
    eventually(lambda: not again.count() or again.click(), "the end of the checks")
    expect(plain.locator("#verdict")).to_contain_text("This run can start")
    plain.get_by_role("button", name=re.compile("^(Start|Queue)$")).click()

    run_id = run_in_address(plain)
    eventually(lambda: run_row(server, run_id).completed > 0, "its first update", 60)
    plain.reload()
    plain.get_by_role("button", name="Stop").click()
    eventually(lambda: run_row(server, run_id).status == "stopped", "its end")
    plain.get_by_role("link", name="Artifacts").click()
    with plain.expect_download() as download:
        plain.get_by_role("link", name=re.compile("adapter.gguf")).first.click()
    assert download.value.path().read_bytes()[:4] == b"GGUF"
