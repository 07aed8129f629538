"""What a person does, more than once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from playwright.sync_api import Locator, Page, expect

from app.store.models import Run
from e2e.server import Server
from e2e.waiting import eventually

ENDED = ("completed", "stopped", "failed", "interrupted")
_DROPPED = """(files) => {
  const dropped = new DataTransfer();
  for (const [name, text] of files) dropped.items.add(new File([text], name));
  return dropped;
}"""


def drop(page: Page, files: Sequence[Path]) -> None:
    """Drop files on the page for new runs, as from a file manager."""
    texts = [(file.name, file.read_text(encoding="utf-8")) for file in files]
    dropped = page.evaluate_handle(_DROPPED, texts)
    zone = page.locator("[data-drop]").first
    for event in ("dragenter", "dragover", "drop"):
        zone.dispatch_event(event, {"dataTransfer": dropped})
    for file in files:
        expect(zone).to_contain_text(file.name)


def check(page: Page, files: Sequence[Path]) -> None:
    """Bring the files to the page for new runs, and have them checked."""
    page.goto("/runs/new")
    drop(page, files)
    page.get_by_role("button", name="Check").click()


def start(page: Page, files: Sequence[Path]) -> int:
    """The id of the run that begins."""
    check(page, files)
    expect(verdict(page)).to_contain_text("This run can start", timeout=60_000)
    page.get_by_role("button", name=re.compile("^(Start|Queue)$")).click()
    page.wait_for_url(re.compile(r"/runs/\d+$"))
    return run_in_address(page)


def verdict(page: Page) -> Locator:
    return page.locator("#verdict")


def run_in_address(page: Page) -> int:
    found = re.search(r"/runs/(\d+)", page.url)
    assert found is not None, page.url
    return int(found[1])


def status(page: Page) -> Locator:
    """The word beside the run's name."""
    return page.locator("#run-head .pill")


def run_row(server: Server, run_id: int) -> Run:
    with closing(server.store()) as store, store.read() as session:
        return session.get_one(Run, run_id)


def wait_for_update(server: Server, run_id: int, update: int, seconds: float = 60) -> None:
    what = f"update {update} of run {run_id}"
    with closing(server.store()) as store:

        def made() -> bool:
            with store.read() as session:
                run = session.get_one(Run, run_id)
                assert run.status not in ENDED, f"it ended as {run.status}: {run.message}"
                return run.completed >= update

        eventually(made, what, seconds)


def wait_for_end(server: Server, run_id: int) -> Run:
    def ended() -> Run | None:
        row = run_row(server, run_id)
        return row if row.status in ENDED else None

    return eventually(ended, f"the end of run {run_id}", 60)
