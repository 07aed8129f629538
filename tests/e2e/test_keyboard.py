"""A run is made, read and taken home by the keyboard alone."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, Page, expect

from e2e.runs import UNHURRIED, WORD, write_run
from e2e.steps import run_in_address, status, verdict, wait_for_end, wait_for_update

MOST_STOPS = 150
_FOCUS_SHOWS = """(part) => {
  const style = getComputedStyle(part);
  return part.matches(":focus-visible")
    && ((style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0)
      || style.boxShadow !== "none");
}"""


def go_to(page: Page, wanted: Locator) -> None:
    """Tab until ``wanted`` has the focus, which has to be seen there."""
    expect(wanted).to_be_visible()
    for _ in range(MOST_STOPS):
        page.keyboard.press("Tab")
        if wanted.evaluate("(part) => part === document.activeElement"):
            assert wanted.evaluate(_FOCUS_SHOWS), f"nobody sees that {wanted} has the focus"
            return
    raise AssertionError(f"{wanted} is not reached with {MOST_STOPS} times Tab")


def press(page: Page, wanted: Locator, key: str = "Enter") -> None:
    go_to(page, wanted)
    page.keyboard.press(key)


def open_update(page: Page) -> Locator:
    return page.get_by_label("Open update", exact=True)


def test_from_three_files_to_an_adapter_without_a_mouse(server, tab, tmp_path):
    watch = tab(server)
    page = watch.page
    changes = {"grpo.updates": 5000, "run.name": "by keyboard"}
    files = write_run(tmp_path / "run", changes, reward=UNHURRIED)

    page.goto("/")
    press(page, page.get_by_role("link", name="New run").first)
    page.wait_for_url("**/runs/new")
    with page.expect_file_chooser() as chooser:
        press(page, page.get_by_label("Drop the TOML file"))
    chooser.value.set_files(files.dropped)
    press(page, page.get_by_role("button", name="Check"))
    expect(verdict(page)).to_contain_text("This run can start", timeout=60_000)
    press(page, page.get_by_role("button", name=re.compile("^(Start|Queue)$")))
    page.wait_for_url(re.compile(r"/runs/\d+$"))
    run_id = run_in_address(page)
    wait_for_update(server, run_id, 3)

    read_by_keys(page)

    press(page, page.get_by_role("button", name="Stop"))
    expect(status(page)).to_have_text("stopped")
    wait_for_end(server, run_id)
    press(page, page.get_by_role("link", name="Artifacts", exact=True))
    with page.expect_download() as download:
        press(page, page.get_by_role("link", name="adapter.gguf", exact=True))
    assert download.value.path().read_bytes()[:4] == b"GGUF"
    watch.assert_clean()


def read_by_keys(page: Page) -> None:
    press(page, page.get_by_role("link", name="Trajectories", exact=True))
    page.wait_for_url("**/trajectories*")

    move_by_keys(page)
    hold_side_by_side(page)
    filter_by_keys(page)
    search_and_follow(page)


def move_by_keys(page: Page) -> None:
    # The strip is one stop, and the arrows go through its columns.
    strip = page.get_by_role("group", name=re.compile("^Rewards by update"))
    go_to(page, strip.locator("a[aria-current]"))
    for _ in range(60):
        if re.match(r"update 2\b", page.evaluate("document.activeElement.ariaLabel") or ""):
            break
        page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    expect(open_update(page)).to_have_value("2")

    # Updates and groups.
    page.keyboard.press("k")
    expect(open_update(page)).to_have_value("1")
    page.keyboard.press("j")
    expect(open_update(page)).to_have_value("2")
    page.keyboard.press("n")
    expect(page.get_by_role("heading", name="Group 2 of 2")).to_be_visible()
    page.keyboard.press("p")
    expect(page.get_by_role("heading", name="Group 1 of 2")).to_be_visible()


def hold_side_by_side(page: Page) -> None:
    answers = page.locator("#detail article")
    press(page, answers.nth(0).get_by_role("link", name="Compare"))
    press(page, answers.nth(1).get_by_role("link", name="Compare with it"))
    expect(page.get_by_role("article", name="Second answer")).to_be_visible()
    page.keyboard.press("c")
    expect(answers).to_have_count(4)


def filter_by_keys(page: Page) -> None:
    press(page, page.locator("#menu-reward > summary"))
    go_to(page, page.locator("#menu-reward").get_by_label("from"))
    page.keyboard.type("0.75")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Answers that fit")).to_be_visible()
    press(page, page.get_by_role("link", name="clear", exact=True))
    expect(page.get_by_role("heading", name=re.compile("^Group"))).to_be_visible()
    press(page, page.locator("#menu-skip > summary"))
    press(page, page.locator("#menu-skip").get_by_role("link", name="zero signal"))
    expect(page.get_by_role("heading", name="Answers that fit")).to_be_visible()
    press(page, page.get_by_role("link", name="clear", exact=True))
    expect(page.get_by_role("heading", name=re.compile("^Group"))).to_be_visible()


def search_and_follow(page: Page) -> None:
    page.keyboard.press("/")
    page.keyboard.type(WORD)
    page.keyboard.press("Enter")
    expect(page.locator("#detail mark").first).to_have_text(WORD)
    press(page, page.locator("#detail a.hit").first)
    expect(page.locator("#detail .prompt")).to_contain_text(WORD)
    page.keyboard.press("f")
    expect(page.locator("#reading[data-follow]")).to_be_visible()
    page.keyboard.press("f")
    expect(page.locator("#reading[data-follow]")).to_have_count(0)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Keys")).to_be_hidden()
