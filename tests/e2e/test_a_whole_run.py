"""A person's first hour: three files become a run that is watched, read, stopped and taken home."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Page, expect

from e2e.drawn import note_drawing, seconds_behind, wait_for_points
from e2e.runs import TINY, UNHURRIED, WORD, write_run
from e2e.steps import check, run_in_address, status, verdict, wait_for_end
from e2e.waiting import eventually

HEADLINES = ("reward/mean", "policy/clip_fraction")
CHANGES = """
import sys
import numpy as np
from llama_cpp import Llama

def scores(**adapter):
    model = Llama(model_path=sys.argv[1], n_ctx=64, logits_all=True, verbose=False, **adapter)
    tokens = model.tokenize(b"Add 2 and 3.")
    model.eval(tokens)
    return np.array(model.scores[: len(tokens)])

print(float(np.abs(scores(lora_path=sys.argv[2]) - scores()).max()))
"""


def opened_update(page: Page) -> int:
    return int(page.locator("#reading").get_attribute("data-update") or 0)


def test_from_three_files_to_an_adapter(server, tab, tmp_path):
    watch = tab(server)
    page = watch.page
    note_drawing(page)
    changes = {"grpo.updates": 5000, "grpo.group_size": 4}
    files = write_run(tmp_path / "run", changes, reward=UNHURRIED, name="first run")

    # The files are dropped, and what the checks found is read before anything starts.
    check(page, files.dropped)
    expect(verdict(page)).to_contain_text("This run can start", timeout=60_000)
    for said in ("24 prompts", "reward.py gave", "sampler and trainer"):
        expect(verdict(page)).to_contain_text(said)
    page.get_by_role("button", name=re.compile("^(Start|Queue)$")).click()
    page.wait_for_url(re.compile(r"/runs/\d+$"))
    run_id = run_in_address(page)
    page.evaluate("window.sameDocument = true")

    # Both curves grow by themselves, each point within a second of its row.
    curves = {name: wait_for_points(page, name, 8) for name in HEADLINES}
    for name, points in curves.items():
        late = seconds_behind(server, run_id, points)
        assert max(late.values()) < 1.0, (
            f"{name}: seconds from the update's end to its point {late}"
        )
    assert page.evaluate("window.sameDocument"), "the page was loaded anew"
    expect(status(page)).to_have_text("running")

    read_answers(page)
    follow(page)

    # It is stopped, and its adapter taken home.
    page.get_by_role("button", name="Stop").click()
    expect(status(page)).to_have_text("stopped")
    wait_for_end(server, run_id)
    page.get_by_role("link", name="Artifacts", exact=True).click()
    with page.expect_download() as download:
        page.get_by_role("link", name="adapter.gguf", exact=True).click()
    adapter = tmp_path / "taken-home.gguf"
    download.value.save_as(adapter)
    assert 0 < changes_in_llama(adapter) < 100
    watch.assert_clean()


def read_answers(page: Page) -> None:
    """From the heat strip to an update, a group, two answers, filters and the search."""
    page.get_by_role("link", name="Trajectories", exact=True).click()
    page.get_by_role("link", name=re.compile(r"^update 2[:,]")).click()
    expect(page.get_by_label("Open update", exact=True)).to_have_value("2")
    page.locator("#groups-list").get_by_role("link").nth(1).click()
    expect(page.get_by_role("heading", name="Group 2 of 2")).to_be_visible()
    answers = page.locator("#detail article")
    expect(answers).to_have_count(4)

    # Two answers side by side.
    answers.nth(0).get_by_role("link", name="Compare").click()
    answers.nth(3).get_by_role("link", name="Compare with it").click()
    expect(page.get_by_role("article", name="First answer")).to_be_visible()
    expect(page.get_by_role("article", name="Second answer")).to_be_visible()
    page.get_by_role("link", name="Close").click()
    expect(answers).to_have_count(4)

    # By reward.
    tools = page.locator("#tools")
    tools.locator("#menu-reward > summary").click()
    tools.get_by_label("from").fill("0.75")
    tools.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("heading", name="Answers that fit")).to_be_visible()
    page.get_by_role("link", name="whole run", exact=True).click()
    expect(answers.first).to_contain_text("0.80")
    expect(page.locator("#detail .reward", has_text=re.compile("0.[1-7]"))).to_have_count(0)
    page.get_by_role("link", name="clear", exact=True).click()
    expect(answers).to_have_count(4)

    # By the reason why an answer was not trained on.
    tools.locator("#menu-skip > summary").click()
    tools.get_by_role("link", name="zero signal").click()
    page.get_by_role("link", name="whole run", exact=True).click()
    expect(answers.first).to_contain_text("zero signal")
    expect(answers.filter(has_not_text="zero signal")).to_have_count(0)
    page.get_by_role("link", name="clear", exact=True).click()
    expect(page.get_by_role("heading", name=re.compile("^Group"))).to_be_visible()

    # A word, wherever it was said in the run.
    page.get_by_role("searchbox").fill(WORD)
    page.keyboard.press("Enter")
    expect(page.locator("#detail mark").first).to_have_text(WORD)
    page.locator("#detail a.hit").first.click()
    expect(page.locator("#detail .prompt")).to_contain_text(WORD)


def follow(page: Page) -> None:
    """The latest update comes by itself while that is wanted, and stays away when not."""
    page.get_by_role("link", name="follow latest").click()
    expect(page.locator("#reading[data-follow]")).to_be_visible()
    before = opened_update(page)
    eventually(lambda: opened_update(page) > before + 1, "later updates without a touch")
    page.get_by_role("link", name="follow latest").click()
    expect(page.locator("#reading[data-follow]")).to_have_count(0)
    stayed, words = opened_update(page), page.locator("#detail").inner_text()
    expect(page.locator("#news")).to_contain_text(re.compile(r"[2-9] new updates"))
    assert opened_update(page) == stayed
    assert page.locator("#detail").inner_text() == words
    page.locator("#news").click()
    eventually(lambda: opened_update(page) > stayed, "the update that is new")


def changes_in_llama(adapter: Path) -> float:
    """By how much it changes what llama.cpp makes of a prompt: the largest change of a logit."""
    command = [sys.executable, "-c", CHANGES, str(TINY), str(adapter)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)
