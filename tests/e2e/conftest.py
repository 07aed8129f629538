from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Error, Page, expect, sync_playwright
from sqlalchemy import select

from app.store.models import Run
from e2e.chromium import launched
from e2e.runs import put_model, write_run
from e2e.server import Server
from e2e.told_runs import endless_words, hostile_words, tell_run
from e2e.watched_page import Watch

PATIENCE = 15_000
OPENED = pytest.StashKey[list[Page]]()


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = launched(playwright)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server that most tests share; those that kill one start their own."""
    # Runs that tests only tell of take places of the queue as well.
    server = Server(tmp_path_factory.mktemp("shared"), runs_at_once=50)
    put_model(server.workspace)
    yield server.start()
    server.stop()


@pytest.fixture(scope="package")
def finished_run(server: Server, tmp_path_factory: pytest.TempPathFactory) -> int:
    """A real run of the tiny model, from a terminal, with evaluations and checkpoints."""
    folder = tmp_path_factory.mktemp("finished")
    put_model(folder)
    changes = {
        "grpo.updates": 6,
        "evaluation.data": "prompts.jsonl",
        "evaluation.every_iterations": 3,
        "evaluation.max_examples": 4,
        "checkpoint.mode": "steps",
        "checkpoint.every_steps": 4,
        "observe.directory": ".",
    }
    done = server.train(write_run(folder, changes, name="finished").config)
    assert done.returncode == 0, done.stderr
    with closing(server.store()) as store, store.read() as session:
        return session.scalars(select(Run.id).where(Run.name == "finished")).one()


@pytest.fixture(scope="package")
def hostile_run(server: Server, tmp_path_factory: pytest.TempPathFactory) -> int:
    """A run whose every word tries to run script."""
    return tell_run(server, tmp_path_factory.mktemp("hostile"), hostile_words())


@pytest.fixture(scope="package")
def endless_run(server: Server, tmp_path_factory: pytest.TempPathFactory) -> int:
    """A run whose every word is longer than a screen is wide."""
    return tell_run(server, tmp_path_factory.mktemp("endless"), endless_words())


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "own")
    put_model(server.workspace)
    yield server.start()
    server.stop()


@pytest.fixture
def tab(
    browser: Browser, request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[..., Watch]]:
    """Opens a tab at a server, in a window of its own, with options of Playwright's contexts."""
    contexts: list[BrowserContext] = []
    request.node.stash[OPENED] = []

    def open_tab(server: Server, **options: object) -> Watch:
        size = {"width": 1280, "height": 900}
        context = browser.new_context(base_url=server.url, **{"viewport": size, **options})
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        watch = Watch(context.new_page())
        request.node.stash[OPENED].append(watch.page)
        return watch

    yield open_tab
    for context in contexts:
        context.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Pictures of the tabs of a test that failed, in its own temporary folder."""
    report = yield
    if report.when == "call" and report.failed:
        for number, page in enumerate(item.stash.get(OPENED, [])):
            picture = item.funcargs["tmp_path"] / f"failed-{number}.png"  # type: ignore[attr-defined]
            try:
                page.screenshot(path=picture, full_page=True)
                words = f"{page.url}\n{picture}"
            except Error as error:  # a page that crashed has no picture
                words = f"{page.url}\nno picture: {error}"
            report.sections.append((f"tab {number}", words))
    return report
