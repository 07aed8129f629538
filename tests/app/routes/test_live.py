"""The streams of hints, over a real server."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import closing, contextmanager

import httpx
import pytest
import uvicorn
from told_runs import enter, info, outcome, tell, wait_until, whole_run
from web import page_headers

from app.server.serving import Server
from app.settings import ServerSettings
from app.store.database import Store
from app.store.models import Run
from app.store.monitor import StoreMonitor
from app.web import create_app

SOON = 1.0
OF_A_RUN = {"run", "metrics", "trajectories", "events", "artifacts"}


class Running:
    """A server in a thread of this process."""

    def __init__(self, store: Store, **settings: object) -> None:
        self.app = create_app(ServerSettings(**settings), store)
        self._listening = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(self.app, access_log=False, log_config=None, lifespan="off")
        self._server = Server(config, [self.app.state.hints, self.app.state.desk])
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._listening]}
        )
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    @property
    def listeners(self) -> int:
        return len(self.app.state.hints._listeners)

    def stop(self) -> float:
        """The seconds that it took to end."""
        start = time.monotonic()
        self._server.should_exit = True
        self._thread.join(timeout=20)
        assert not self._thread.is_alive()
        self._listening.close()
        return time.monotonic() - start


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """One for all of them, each with runs of its own."""
    with closing(Store.open(str(tmp_path_factory.mktemp("store") / "store.db"))) as opened:
        yield opened


@pytest.fixture(scope="module")
def server(store):
    running = Running(store)
    yield running
    running.stop()


class Stream:
    """The events of an open stream, one at a time."""

    def __init__(self, lines) -> None:
        self._lines = lines
        assert self.event()["event"] == "open"

    def event(self):
        """The fields of the next event; None where the stream has ended."""
        fields = {}
        for line in self._lines:
            if not line:
                return fields
            name, _, value = line.partition(": ")
            fields[name] = value
        return None

    def hints(self):
        """The kinds up to the next event with an id, and that id."""
        kinds = set()
        while event := self.event():
            kinds.add(json.loads(event["data"])["kind"])
            if "id" in event:
                return kinds, event["id"]
        return kinds, None

    def hints_until(self, mark):
        """The kinds of everything up to the state of that name."""
        found = set()
        while True:
            kinds, number = self.hints()
            found |= kinds
            if number in (mark, None):
                return found


@contextmanager
def stream(server, path, **headers):
    with (
        httpx.Client(base_url=server.url, timeout=10) as client,
        client.stream("GET", path, headers=headers) as response,
    ):
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Stream(response.iter_lines())


def touch(store, run_id):
    with store.write() as session:
        run = session.get_one(Run, run_id)
        run.pulse += 1
        return run.pulse


def test_a_committed_update_is_hinted_at_within_a_second(server, store, tmp_path):
    monitor = StoreMonitor(store, enter(store, tmp_path))
    monitor.run_started(info(tmp_path))
    monitor.settle()
    with stream(server, f"/runs/{monitor.run_id}/live") as events:
        tell(monitor, 1)
        monitor.settle()
        start = time.monotonic()
        kinds = set()
        while not {"run", "metrics", "trajectories"} <= kinds:
            kinds |= events.hints()[0]
        assert time.monotonic() - start < SOON
    monitor.run_finished(outcome(1))


def test_the_list_hears_of_runs_and_of_nothing_else(server, store, tmp_path):
    with stream(server, "/live") as events:
        monitor = whole_run(store, tmp_path, 1)
        assert events.hints()[0] == {"runs"}
    assert monitor.run_id


def test_a_page_that_is_up_to_date_is_told_nothing_at_first(server, store, tmp_path):
    run_id = enter(store, tmp_path)
    pulse = touch(store, run_id)
    with stream(server, f"/runs/{run_id}/live?seen={pulse}") as events:
        after = touch(store, run_id)
        assert events.hints_until(str(after)) == {"run"}, "and nothing of what it has"


@pytest.mark.parametrize("how", ["query", "header"])
def test_a_page_that_has_missed_something_is_told_at_once(server, store, tmp_path, how):
    run_id = enter(store, tmp_path)
    before = touch(store, run_id)
    pulse = touch(store, run_id)
    path, headers = f"/runs/{run_id}/live", {"Last-Event-ID": str(before)}
    if how == "query":
        path, headers = f"{path}?seen={before}", {}
    with stream(server, path, **headers) as events:
        assert events.hints() == (OF_A_RUN, str(pulse))


def test_what_the_browser_has_heard_counts_for_more_than_the_address(server, store, tmp_path):
    run_id = enter(store, tmp_path)
    old = touch(store, run_id)
    pulse = touch(store, run_id)
    path = f"/runs/{run_id}/live?seen={old}"
    with stream(server, path, **{"Last-Event-ID": str(pulse)}) as events:
        after = touch(store, run_id)
        assert events.hints_until(str(after)) == {"run"}, "and nothing of what it has"


def test_the_same_can_be_had_by_asking(server, store, tmp_path):
    run_id = enter(store, tmp_path)
    touch(store, run_id)
    for path, kinds in ((f"/runs/{run_id}/live.json", OF_A_RUN), ("/live.json", {"runs"})):
        first = httpx.get(server.url + path).json()
        assert first["hints"] == []
        again = httpx.get(server.url + path, params={"seen": first["mark"]}).json()
        assert again == first
        touch(store, run_id)
        later = httpx.get(server.url + path, params={"seen": first["mark"]}).json()
        assert {hint["kind"] for hint in later["hints"]} == kinds
        assert later["mark"] != first["mark"]


@pytest.mark.parametrize("path", ["/runs/9999/live", "/runs/9999/live.json"])
def test_there_is_no_stream_of_a_run_that_is_not_there(server, path):
    assert httpx.get(server.url + path).status_code == 404


def test_a_client_that_goes_away_leaves_nothing_behind(store):
    alone = Running(store)
    with stream(alone, "/live") as held:  # what nobody holds is closed
        wait_until(lambda: alone.listeners == 1)
        del held
    wait_until(lambda: alone.listeners == 0)
    alone.stop()


def test_open_streams_do_not_hold_up_the_end_of_the_server(store):
    running = Running(store)
    with stream(running, "/live") as one, stream(running, "/live") as other:
        assert running.stop() < 2.0
        assert one.event() is None
        assert other.event() is None


@pytest.mark.full
def test_an_open_stream_is_kept_alive(server):
    """Every 15 s, which is how long this takes."""
    with httpx.stream("GET", f"{server.url}/live", timeout=30) as response:
        assert any(line.startswith(": ") for line in response.iter_lines())


TOKEN = "a-long-token-of-the-operator"


@pytest.fixture
def closed_server(store):
    """A server with a token, and a client of it that has logged in."""
    running = Running(store, token=TOKEN)
    with httpx.Client(base_url=running.url, timeout=10) as client:
        client.post("/login", data={"token": TOKEN}, headers=page_headers(client, "/login"))
        yield running, client
    running.stop()


@pytest.mark.parametrize("quiet", [True, False])
def test_a_stream_ends_soon_after_the_logout(closed_server, store, tmp_path, quiet):
    server, client = closed_server
    run_id = enter(store, tmp_path, status="running")
    cookies = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
    path = f"/runs/{run_id}/live"
    with stream(server, path, cookie=cookies) as events:
        client.post("/logout", headers=page_headers(client))
        start = time.monotonic()
        if not quiet:
            touch(store, run_id)
        assert events.hints() == (set(), None), "nothing is told after it"
        assert time.monotonic() - start < 5
    wait_until(lambda: server.listeners == 0)


def test_a_script_with_the_token_is_told_on(closed_server, store, tmp_path):
    server, _ = closed_server
    run_id = enter(store, tmp_path, status="running")
    with stream(server, f"/runs/{run_id}/live", authorization=f"Bearer {TOKEN}") as events:
        touch(store, run_id)
        assert events.hints()[0]
