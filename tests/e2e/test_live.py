"""A page stays true to the store whatever the server does meanwhile."""

from __future__ import annotations

from contextlib import closing
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Route, expect
from told_runs import enter
from web import served

from app.settings import ServerSettings
from app.store.database import Store
from app.store.models import Run
from app.web import create_app
from e2e.steps import status

TOKEN = "a token of sixteen and more"


@pytest.fixture
def store(tmp_path):
    with closing(Store.open(str(tmp_path / "store.db"))) as opened:
        yield opened


@pytest.fixture
def page(browser: Browser):
    context = browser.new_context()
    yield context.new_page()
    context.close()


def change(store, run_id, **values):
    with store.write() as session:
        run = session.get_one(Run, run_id)
        for name, value in values.items():
            setattr(run, name, value)
        run.pulse += 1


@pytest.mark.parametrize("answer", ["busy", pytest.param("none", marks=pytest.mark.full)])
def test_the_last_change_is_shown_although_the_store_was_busy(store, page, tmp_path, answer):
    """There comes no other hint after it."""
    run_id = enter(store, tmp_path, status="running")
    failed = []

    def fail_once(route: Route) -> None:
        if failed or "hx-request" not in route.request.headers:
            route.continue_()
            return
        failed.append(route.request.url)
        if answer == "busy":
            route.fulfill(status=503, body="The store did not answer.")
        else:
            route.abort()

    with served(create_app(ServerSettings(), store)) as url:
        page.route(f"{url}/runs/{run_id}", fail_once)
        with page.expect_response("**/live*"):
            page.goto(f"{url}/runs/{run_id}")
        expect(status(page)).to_have_text("running")
        change(store, run_id, status="completed", ended_at=1.0)
        expect(status(page)).to_have_text("completed")
        assert failed


@pytest.mark.full
def test_after_a_restart_an_open_page_leads_to_the_login(store, page, tmp_path):
    """Sessions end with the server that knew them."""
    run_id = enter(store, tmp_path)
    settings = ServerSettings(token=TOKEN)
    with served(create_app(settings, store)) as url:
        page.goto(f"{url}/runs/{run_id}/journal?level=error")
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Log in").click()
        expect(status(page)).to_be_visible()
    with served(create_app(settings, store), port=urlsplit(url).port):
        again = page.locator("#connection").get_by_role("link", name="Log in again")
        again.click()
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url(f"{url}/runs/{run_id}/journal?level=error")
