"""HEAD, over a real server."""

from __future__ import annotations

import asyncio
from contextlib import closing

import httpx
import pytest
from told_runs import whole_run
from web import served

from app.server.head import Head
from app.settings import ServerSettings
from app.store.database import Store
from app.web import create_app


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """Of a server with a run that has ended and left its adapter."""
    folder = tmp_path_factory.mktemp("head")
    with closing(Store.open(str(folder / "store.db"))) as store:
        whole_run(store, folder, 3)
        app = create_app(ServerSettings(), store)
        with served(app) as address, httpx.Client(base_url=address, timeout=20) as client:
            yield client
            app.state.hints.close()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 200),
        ("/runs.json", 200),
        ("/runs/1", 200),
        ("/runs/1.json", 200),
        ("/runs/1/metrics", 200),
        ("/runs/new", 200),
        ("/static/css/charts.css", 200),
        ("/login", 303),
        ("/runs/99", 404),
        ("/nowhere", 404),
    ],
)
def test_head_is_answered_as_get_is_without_a_body(client, path, status):
    got, asked = client.get(path), client.head(path)
    assert got.status_code == asked.status_code == status
    assert asked.content == b""
    for name in ("content-type", "content-length", "content-security-policy", "location"):
        assert asked.headers.get(name) == got.headers.get(name), name


def test_of_a_download_the_length_is_told(client):
    config = client.get("/runs/1/artifacts.json").json()["files"][0]
    answer = client.head(f"/runs/1/artifacts/{config['id']}")
    assert answer.status_code == 200
    assert int(answer.headers["content-length"]) == config["size"]
    assert answer.headers["content-disposition"].startswith("attachment")


@pytest.mark.parametrize("path", ["/live", "/runs/1/live", "/runs/1/export/metrics.csv"])
def test_of_what_is_long_only_the_beginning_is_made(client, path):
    answer = client.head(path)
    assert (answer.status_code, answer.content) == (200, b"")
    kind = "text/event-stream" if path.endswith("live") else "text/csv"
    assert answer.headers["content-type"].startswith(kind)
    assert client.get("/runs.json").status_code == 200, "the connection is fit for the next one"


class Failing:
    """An application that sends the beginning of an answer, and whose end is ``then``."""

    def __init__(self, then):
        self.then = then

    async def __call__(self, scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
        except Exception as cut:
            self.then(cut)
            raise


def head_of(app):
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(Head(app)({"type": "http", "method": "HEAD"}, None, send))
    return sent


def together(*errors):
    raise ExceptionGroup("tasks", errors)


def test_that_an_answer_was_cut_off_is_no_error_alone_or_in_a_group():
    for then in (lambda _: None, together, lambda cut: together(ExceptionGroup("inner", [cut]))):
        assert [message["type"] for message in head_of(Failing(then))] == [
            "http.response.start",
            "http.response.body",
        ]


def test_what_fails_after_the_beginning_is_not_hidden():
    def fail(_):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        head_of(Failing(fail))
    with pytest.raises(ExceptionGroup) as raised:
        head_of(Failing(lambda cut: together(cut, KeyError("a"))))
    assert [type(error) for error in raised.value.exceptions] == [KeyError]


def test_what_takes_no_get_takes_no_head(client):
    assert client.head("/logout").status_code == 405
