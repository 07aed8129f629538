"""The pages can be read by everybody: by axe's rules in both colour schemes, at the width of a
telephone, and whatever is in them."""

from __future__ import annotations

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from e2e.kinds_of_runs import draft_without_its_files, tell_kind, wrong_draft
from e2e.pages import MISSING, OF_EACH_KIND, PAGES, address, open_everything, visit
from e2e.server import Server
from e2e.watched_page import Watch

NARROW = {"width": 360, "height": 740}
ABOUT_COLOURS = {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}
"""All that another colour scheme can change."""
LOOKED_AT = (
    *(page for page in PAGES if not page.startswith("/runs/{run}/metrics?")),
    MISSING,
)
FEWER = {"/runs/{run}/metrics": "/runs/{run}/metrics?filter=reward"}
"""Fifty charts are made of the same parts as seven."""
_WIDER_THAN_THE_SCREEN = """() => {
  const room = document.documentElement.clientWidth;
  return [...document.querySelectorAll("body *")]
    .filter((part) => part.getBoundingClientRect().right > room + 1)
    .slice(0, 8)
    .map((part) => `${part.tagName}.${part.className} ${part.textContent.slice(0, 40)}`);
}"""


def serious_faults(page: Page, rules: dict[str, Any] | None = None) -> list[str]:
    options = {"resultTypes": ["violations"], **(rules or {})}
    found: dict[str, Any] = Axe().run(page, options=options).response
    return [
        f"{fault['id']} ({fault['impact']}): {node['target']} {node['failureSummary']}"
        for fault in found["violations"]
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]


def assert_fits(page: Page) -> None:
    """Nothing is to be scrolled to sideways. Parts with a scroll bar of their own may."""
    widths = page.evaluate("[document.scrollingElement.scrollWidth, window.innerWidth]")
    assert widths[0] <= widths[1], page.evaluate(_WIDER_THAN_THE_SCREEN)


@pytest.fixture(scope="package")
def empty_server(tmp_path_factory):
    """Nothing has been done with it yet."""
    server = Server(tmp_path_factory.mktemp("empty")).start()
    yield server
    server.stop()


@pytest.mark.parametrize("page", LOOKED_AT)
def test_axe_finds_nothing_serious_in_light_and_dark_on(
    page, server, tab, finished_run, hostile_run
):
    watch = tab(server)
    visit(watch.page, address(server, FEWER.get(page, page), finished_run, hostile_run))
    open_everything(watch.page)
    watch.page.emulate_media(color_scheme="light")
    assert serious_faults(watch.page) == []
    watch.page.emulate_media(color_scheme="dark")
    assert serious_faults(watch.page, ABOUT_COLOURS) == []


@pytest.mark.parametrize("page", [*PAGES, MISSING])
def test_nothing_is_wider_than_a_telephone_on(page, server, tab, finished_run, endless_run):
    watch = tab(server, viewport=NARROW)
    for run_id, other in ((finished_run, endless_run), (endless_run, finished_run)):
        visit(watch.page, address(server, page, run_id, other))
        assert_fits(watch.page)
        open_everything(watch.page)
        assert_fits(watch.page)


@pytest.mark.parametrize("page", ["/", "/runs/new", "/compare"])
def test_pages_without_data_are_whole(page, empty_server, tab):
    watch = tab(empty_server, viewport=NARROW)
    visit(watch.page, page)
    assert_fits(watch.page)
    assert serious_faults(watch.page) == []
    watch.assert_clean()


# -- pages of other runs, and those before one -----------------------------------------------------


def assert_readable(watch: Watch) -> None:
    """By axe in both colour schemes, at the width of a telephone, folded and unfolded."""
    assert_fits(watch.page)
    open_everything(watch.page)
    assert_fits(watch.page)
    watch.page.emulate_media(color_scheme="light")
    assert serious_faults(watch.page) == []
    watch.page.emulate_media(color_scheme="dark")
    assert serious_faults(watch.page, ABOUT_COLOURS) == []
    watch.assert_clean()


@pytest.fixture(
    scope="package",
    params=["grpo", *(pytest.param(kind, marks=pytest.mark.full) for kind in ("ppo", "sft"))],
)
def evaluated_run(server, tmp_path_factory, request):
    return tell_kind(server, tmp_path_factory.mktemp(request.param) / "run", request.param)


@pytest.mark.parametrize("page", OF_EACH_KIND)
def test_a_run_of_each_algorithm_with_evaluations_is_readable_on(page, server, tab, evaluated_run):
    watch = tab(server, viewport=NARROW)
    visit(watch.page, page.format(run=evaluated_run))
    assert_readable(watch)


@pytest.mark.parametrize("made", [wrong_draft, draft_without_its_files])
def test_a_draft_with_errors_is_readable(made, server, tab):
    watch = tab(server, viewport=NARROW)
    visit(watch.page, made(server))
    expect(watch.page.get_by_role("button", name="Start")).to_be_disabled()
    assert_readable(watch)


@pytest.fixture(scope="package")
def closed_server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("closed"), token="a-long-token-of-the-operator").start()
    yield server
    server.stop()


def test_the_login_is_readable_also_after_a_wrong_token(closed_server, tab):
    watch = tab(closed_server, viewport=NARROW)
    watch.page.goto("/")
    expect(watch.page.get_by_role("button", name="Log in")).to_be_visible()
    assert_readable(watch)
    watch.page.get_by_label("Token").fill("wrong")
    with watch.page.expect_response(lambda answer: answer.status == 401):
        watch.page.get_by_role("button", name="Log in").click()
    expect(watch.page.get_by_role("alert")).to_contain_text("not the server's token")
    assert_fits(watch.page)
    assert serious_faults(watch.page) == []
