from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from told_runs import enter, info, outcome

from app.server.app import create_app
from app.server.settings import ServerSettings
from app.store.database import Store
from app.store.monitor import StoreMonitor
from trainer.monitor import Event


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Iterator[Store]:
    """Run 1 of the browser, with three events and a log; 2 of a terminal; 3 that waits."""
    folder: Path = tmp_path_factory.mktemp("journal")
    store = Store.open(str(folder / "store.db"))
    for name in ("one", "two", "three"):
        (folder / name).mkdir()
        (folder / name / "worker.log").write_text("it said\n\x1b[2Jthis\n")
    monitor = StoreMonitor(store, enter(store, folder / "one", source="browser"))
    monitor.run_started(info(folder / "one"))
    monitor.event(Event("info", "settings", "threads 2"))
    monitor.event(Event("warning", "nan_reward", "line one\nline two", update=4))
    monitor.event(Event("error", "reward_failed", "it died; stderr:\nTraceback"))
    monitor.run_finished(outcome(0))
    enter(store, folder / "two")
    enter(store, folder / "three", source="browser", status="queued")
    (folder / "three" / "worker.log").unlink()
    yield store
    store.close()


@pytest.fixture(scope="module")
def client(store) -> TestClient:
    app = create_app(ServerSettings(), store)
    return TestClient(app, base_url="http://127.0.0.1:8765", headers={"accept": "text/html"})


def codes(client, query: str = "") -> list[str]:
    rows = client.get(f"/runs/1/journal.json{query}").json()["entries"]["rows"]
    return [row["code"] for row in rows]


def test_events_stand_in_the_order_in_which_they_happened(client):
    assert codes(client) == ["settings", "nan_reward", "reward_failed"]
    page = client.get("/runs/1/journal").text
    assert page.index("threads 2") < page.index("line one\nline two") < page.index("Traceback")
    assert 'href="/runs/1/trajectories?update=4"' in page
    assert (
        'id="journal-entries" class="panel flush" aria-label="Events" data-refresh="events"' in page
    )


def test_the_address_filters_by_level_and_words(client):
    assert codes(client, "?level=warning") == ["nan_reward", "reward_failed"]
    assert codes(client, "?level=error") == ["reward_failed"]
    assert codes(client, "?q=STDERR") == ["reward_failed"]
    page = client.get("/runs/1/journal?level=error&q=nothing").text
    assert "No event matches" in page
    assert 'value="nothing"' in page
    assert client.get("/runs/1/journal?level=loud").status_code == 422


def test_a_cursor_shows_what_came_after_and_does_not_move(client):
    first = client.get("/runs/1/journal.json").json()["entries"]["rows"][0]["id"]
    assert codes(client, f"?after={first}") == ["nan_reward", "reward_failed"]
    page = client.get(f"/runs/1/journal?before={first + 1}").text
    assert (
        'data-refresh="events"' not in page.partition('id="journal-entries"')[2].partition(">")[0]
    )
    assert f"after={first}" in page
    assert "newest" in page


def test_the_log_of_a_run_of_the_browser_is_shown_and_served(client):
    page = client.get("/runs/1/journal").text
    assert "it said\n␛[2Jthis" in page
    whole = client.get("/runs/1/worker.log")
    assert whole.content == b"it said\n\x1b[2Jthis\n"
    assert whole.headers["content-disposition"] == 'attachment; filename="run-1.log"'
    part = client.get("/runs/1/worker.log", headers={"range": "bytes=0-6"})
    assert (part.status_code, part.content) == (206, b"it said")


def test_a_terminal_s_run_has_none_here_whatever_lies_in_its_folder(client):
    assert "it said" not in client.get("/runs/2/journal").text
    assert client.get("/runs/2/journal.json").json()["log"] is None
    assert client.get("/runs/2/worker.log").status_code == 404


def test_a_terminal_s_run_that_goes_on_here_has_the_log_of_that(client, store):
    folder = Path(store.place).parent / "runs" / "2"
    folder.mkdir(parents=True)
    (folder / "worker.log").write_text("went on")
    try:
        assert "went on" in client.get("/runs/2/journal").text
        assert client.get("/runs/2/worker.log").text == "went on"
    finally:
        (folder / "worker.log").unlink()


def test_a_log_that_was_swapped_for_a_link_is_not_followed(client, store, tmp_path):
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "worker.log").symlink_to(tmp_path / "secret")
    number = enter(store, tmp_path, source="browser")
    assert "secret" not in client.get(f"/runs/{number}/journal").text
    assert client.get(f"/runs/{number}/worker.log").status_code == 404


def test_a_run_that_waits_says_that_nothing_has_happened(client):
    page = client.get("/runs/3/journal").text
    assert "Nothing has happened yet" in page
    assert client.get("/runs/3/worker.log").status_code == 404
    assert client.get("/runs/99/journal").status_code == 404
