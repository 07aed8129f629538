"""Reading answers: by keys, by the mouse, while the run goes on, and on a narrow screen."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing

import pytest
from playwright.sync_api import Page, expect
from told_runs import enter, info, tell

from app.store.monitor import StoreMonitor
from e2e.pages import visit


@pytest.fixture
def told(server, tmp_path) -> Iterator[StoreMonitor]:
    """A run that is told update by update; five are there."""
    with closing(server.store()) as store:
        monitor = StoreMonitor(store, enter(store, tmp_path))
        monitor.run_started(info(tmp_path, updates=40))
        for update in range(1, 6):
            tell(monitor, update)
        monitor.settle()
        yield monitor
        monitor.abandon()


@pytest.fixture
def page(server, tab, told) -> Iterator[Page]:
    watch = tab(server)
    visit(watch.page, f"/runs/{told._run_id}/trajectories")
    yield watch.page
    watch.assert_clean()


def more(told: StoreMonitor, update: int) -> None:
    tell(told, update)
    told.settle()


def query(page: Page) -> str:
    return page.url.partition("?")[2]


def expect_query(page: Page, wanted: str) -> None:
    expect(page).to_have_url(re.compile(r"\?" + re.escape(wanted) + "$"))


def test_keys_lead_through_updates_and_groups(page):
    expect_query(page, "update=5")
    for key, wanted in (
        ("k", "update=4"),
        ("k", "update=3"),
        ("j", "update=4"),
        ("n", "update=4&group=1"),
        ("p", "update=4&group=0"),
    ):
        page.keyboard.press(key)
        expect_query(page, wanted)
    page.go_back()
    expect_query(page, "update=4&group=1")
    expect(page.locator("#detail h2")).to_have_text("Group 2 of 2")


def test_keys_are_letters_in_a_field_and_rest_while_their_list_is_open(page):
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("k")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.keyboard.press("/")
    page.keyboard.type("jk answer 3")
    expect(page.locator("#search")).to_have_value("jk answer 3")
    expect_query(page, "update=5")


def test_a_search_leads_to_the_answer_in_its_group(page):
    page.keyboard.press("/")
    page.keyboard.type("answer 3")
    page.keyboard.press("Enter")
    expect_query(page, "update=5&q=answer+3")
    expect(page.locator("mark").first).to_have_text("answer")
    page.get_by_role("link", name="answer 3 1 2").click()
    expect(page.locator(".pointed-at .text")).to_contain_text("answer 3 1 2")
    assert re.match(r"update=3&group=1#answer-\d+$", query(page))


def test_two_answers_are_compared_by_key_and_by_mouse(page):
    page.keyboard.press("c")
    expect(page.get_by_text("is marked")).to_be_visible()
    page.keyboard.press("n")
    expect(page.locator("#detail h2")).to_have_text("Group 2 of 2")
    page.get_by_role("link", name="Compare with it").nth(1).click()
    expect(page.locator("#detail h2")).to_have_text("Two answers")
    expect(page.locator("mark.only").first).to_be_visible()
    expect(page.locator("mark.only").last).to_be_visible()
    page.keyboard.press("c")
    expect(page.locator("#detail h2")).to_have_text("Group 2 of 2")
    assert "compare" not in query(page)


def test_what_comes_is_counted_and_nothing_moves_under_the_reader(page, told):
    detail = page.locator("#detail")
    before, place = detail.inner_html(), detail.bounding_box()
    more(told, 6)
    expect(page.locator("#news")).to_have_text("1 new update")
    more(told, 7)
    expect(page.locator("#news")).to_have_text("2 new updates")
    expect(page.locator(".heat a")).to_have_count(7)
    assert (detail.inner_html(), detail.bounding_box()) == (before, place)
    page.locator("#news").click()
    expect_query(page, "update=7")
    expect(page.locator("#news")).to_be_hidden()


def test_who_follows_is_taken_along_until_he_stops(page, told):
    page.keyboard.press("f")
    expect_query(page, "follow=1")
    more(told, 6)
    expect(page.locator("#reading")).to_have_attribute("data-update", "6")
    page.keyboard.press("f")
    expect_query(page, "update=6")
    more(told, 7)
    expect(page.locator("#news")).to_have_text("1 new update")
    expect(page.locator("#reading")).to_have_attribute("data-update", "6")


def test_the_first_answers_appear_by_themselves(server, tab, tmp_path):
    with closing(server.store()) as store:
        monitor = StoreMonitor(store, enter(store, tmp_path))
        monitor.run_started(info(tmp_path))
        monitor.progress("generate", 3, 32)
        monitor.settle()
        page = tab(server).page
        visit(page, f"/runs/{monitor._run_id}/trajectories")
        expect(page.get_by_role("main")).to_contain_text("No answers yet")
        more(monitor, 1)
        expect(page.locator("#detail h2")).to_have_text("Group 1 of 2")
        monitor.abandon()


def test_filters_stay_while_one_goes_to_another_update(page):
    page.get_by_text("reward", exact=True).first.click()
    page.get_by_label("from").fill("0.5")
    page.keyboard.press("Enter")
    expect_query(page, "update=5&min=0.5")
    expect(page.locator("#detail article")).to_have_count(4)
    page.get_by_role("spinbutton", name="Open update").fill("2")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("update=2"))
    assert "min=0.5" in query(page)
    expect(page.get_by_role("spinbutton", name="Open update")).to_be_focused()
    page.get_by_role("link", name="whole run").first.click()
    expect(page.locator("#detail article")).to_have_count(20)


def test_the_arrow_keys_go_along_the_strip(page):
    page.locator(".heat a[aria-current]").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    expect_query(page, "update=3")


def test_on_a_narrow_screen_the_list_comes_first_and_then_the_group(page):
    page.set_viewport_size({"width": 360, "height": 740})
    expect(page.locator("#detail")).to_be_hidden()
    page.locator("#group-1").click()
    expect(page.locator("#detail h2")).to_have_text("Group 2 of 2")
    expect(page.locator("#groups-list")).to_be_hidden()
    assert page.evaluate("() => document.documentElement.scrollWidth") == 360
    page.get_by_role("link", name="all groups").click()
    expect(page.locator("#groups-list")).to_be_visible()
