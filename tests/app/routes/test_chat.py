from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import time
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from talking import enter_talker, sampled
from told_runs import enter, the_run
from web import page_headers, served

from app.chat import desk as desks
from app.settings import ServerSettings
from app.store.alive import HERE
from app.store.database import Store
from app.store.models import Run
from app.web import create_app

FORM = {
    "message": "Add 2 and 3.",
    "temperature": "1.0",
    "top_p": "1.0",
    "seed": "5",
    "max_new_tokens": "24",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def store(tmp_path_factory, folder, tiny):
    """Run 1 can be talked to; run 2 has not ended; run 3 is another machine's."""
    with closing(Store.open(str(tmp_path_factory.mktemp("store") / "store.db"))) as opened:
        enter_talker(opened, folder, tiny, ctx=256)
        (folder / "second").mkdir()
        enter(opened, folder / "second", name="at work", status="running", host=HERE)
        (folder / "third").mkdir()
        enter(opened, folder / "third", name="far away", status="running", host="another-machine")
        yield opened


@pytest.fixture(scope="module")
def app(store):
    app = create_app(ServerSettings(), store)
    yield app
    app.state.desk.close()


@pytest.fixture(scope="module")
def client(app):
    with served(app) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


@pytest.fixture
def headers(client):
    return page_headers(client, "/chat?run=1")


def say(client, headers, **changes):
    return client.post(
        "/chat",
        data=FORM | {"run": "1"} | changes,
        headers={"accept": "application/json", **headers},
    )


def events(client, chat, seen=0):
    """What a page is told, until the first exchange is over."""
    told = []
    with client.stream("GET", f"/chat/{chat}/events?seen={seen}") as stream:
        kind = ""
        for line in stream.iter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                told.append((kind, json.loads(line.removeprefix("data: "))))
                if kind == "over":
                    return told
    raise AssertionError(f"the stream ended: {told}")


def answers(told):
    return [
        "".join(d["text"] for kind, d in told if kind == "text" and d["voice"] == voice)
        for voice in (0, 1)
    ]


def test_both_answers_come_as_events_and_are_the_samplers(client, headers, folder, tiny):
    said = say(client, headers)
    assert said.status_code == 202
    assert said.json()["exchange"] == 0
    told = events(client, said.json()["chat"])
    kinds = [kind for kind, _ in told]
    assert kinds[:2] == ["open", "question"]
    assert kinds[-1] == "over"
    assert kinds.count("end") == 2
    adapter = folder / "adapter.gguf"
    question = FORM["message"]
    assert answers(told) == [
        sampled(tiny, question, 5),
        sampled(tiny, question, 5, adapter=adapter),
    ]
    # A page that comes later is told all of it at once.
    assert answers(events(client, said.json()["chat"])) == answers(told)


def test_a_form_gets_the_page_with_whole_answers_and_goes_on(client, headers):
    html = {"accept": "text/html", **headers}
    first = client.post("/chat", data=FORM | {"run": "1", "chat": ""}, headers=html)
    assert first.status_code == 303
    place = first.headers["location"]
    chat = place.removeprefix("/chat?chat=")
    client.post("/chat", data=FORM | {"run": "1", "chat": chat, "seed": "6"}, headers=html)
    twin = client.get(place.replace("/chat?", "/chat.json?")).json()
    assert [e["seed"] for e in twin["chat"]["exchanges"]] == [5, 6]
    assert twin["draws"]["seed"] == 7
    assert twin["partner"]["id"] == 1
    page = client.get(place, headers={"accept": "text/html"}).text
    for exchange in twin["chat"]["exchanges"]:
        for answer in exchange["answers"]:
            assert answer["text"].split("\n")[0][:20].replace("<", "&lt;") in page


def test_words_are_shown_and_never_obeyed(client, headers):
    html = {"accept": "text/html", **headers}
    words = "<script>x()</script>\u202e\x1b[2J"
    place = client.post("/chat", data=FORM | {"run": "1", "message": words}, headers=html)
    page = client.get(place.headers["location"], headers={"accept": "text/html"}).text
    assert "<script>x()" not in page
    assert "&lt;script&gt;x()&lt;/script&gt;\\u202e␛[2J" in page


def test_only_runs_with_their_files_are_offered_and_others_say_why(client, headers, store, folder):
    twin = client.get("/chat.json?run=2").json()
    assert [p["id"] for p in twin["partners"]] == [1]
    assert twin["training"] == ["at work"]
    assert twin["partner"] is None
    assert twin["refusal"] == "Run 2, at work, cannot be talked to: it has not ended yet."
    assert say(client, headers, run="2").status_code == 409
    assert client.get("/chat?run=99", headers={"accept": "text/html"}).status_code == 404

    base = folder / "base.gguf"
    base.rename(folder / "moved.gguf")
    try:
        assert client.get("/chat.json").json()["partners"] == []
        refused = say(client, headers)
        assert refused.status_code == 409
        assert "its base model is not there any more" in refused.json()["detail"]
    finally:
        (folder / "moved.gguf").rename(base)


def test_a_base_model_that_was_written_again_is_another_one(client, headers, folder):
    base = folder / "base.gguf"
    recorded = base.stat()
    os.utime(base, ns=(recorded.st_atime_ns, recorded.st_mtime_ns + 1_000_000))
    refused = say(client, headers)
    assert refused.status_code == 409
    assert "its base model is not the file any more" in refused.json()["detail"]
    os.utime(base, ns=(recorded.st_atime_ns, recorded.st_mtime_ns))
    assert client.get("/chat.json?run=1").json()["refusal"] == ""


def test_an_adapter_that_was_written_again_is_another_file(client, store, folder):
    adapter = folder / "adapter.gguf"
    before = adapter.read_bytes()
    recorded = adapter.stat()
    adapter.write_bytes(before + b"x")
    twin = client.get("/chat.json?run=1").json()
    assert "its adapter is not there as it was written" in twin["refusal"]
    adapter.write_bytes(before)
    os.utime(adapter, ns=(recorded.st_atime_ns, recorded.st_mtime_ns))
    assert client.get("/chat.json?run=1").json()["refusal"] == ""


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"origin": "http://stranger.example"}, 403),
        ({"x-csrf-token": "another"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
    ],
)
def test_a_strangers_page_cannot_ask(client, headers, app, changed, status):
    before = len(app.state.desk._chats)
    assert say(client, headers | changed).status_code == status
    assert len(app.state.desk._chats) == before


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"message": "x" * 8001}, 422),
        ({"message": ""}, 422),
        ({"temperature": "-1"}, 422),
        ({"temperature": "nan"}, 422),
        ({"temperature": "inf"}, 422),
        ({"temperature": "1e-320"}, 422),
        ({"temperature": "0.009"}, 422),
        ({"max_new_tokens": "4097"}, 422),
        ({"seed": str(10**15)}, 422),
        ({"run": "/etc/passwd"}, 422),
        ({"chat": "no-such-conversation"}, 404),
    ],
)
def test_what_is_out_of_bounds_is_refused(client, headers, changes, status):
    assert say(client, headers, **changes).status_code == status


def test_stopping_what_is_over_changes_nothing(client, headers):
    chat = say(client, headers).json()["chat"]
    told = events(client, chat)
    stopped = client.post(f"/chat/{chat}/stop", headers={"accept": "*/*", **headers})
    assert stopped.status_code == 204
    assert answers(events(client, chat)) == answers(told)


def test_the_way_to_the_chat_stands_on_the_pages_of_a_run_that_has_ended(client, store):
    html = {"accept": "text/html"}
    for page in ("/runs/1", "/runs/1/artifacts"):
        assert 'href="/chat?run=1"' in client.get(page, headers=html).text
    assert "/chat?run=2" not in client.get("/runs/2", headers=html).text
    assert isinstance(the_run(store, 1), Run)


@pytest.mark.parametrize("quiet", [True, False])
def test_the_stream_ends_soon_after_the_logout(store, quiet):
    """Also while an answer is written: none of it is told any more."""
    token = "a-long-token-of-the-operator"
    app = create_app(ServerSettings(token=token), store)
    desk = app.state.desk
    with served(app) as url, httpx.Client(base_url=url, timeout=60) as client, closing(desk):
        client.post("/login", data={"token": token}, headers=page_headers(client, "/login"))
        headers = page_headers(client, "/chat?run=1")
        chat = say(client, headers, max_new_tokens="4" if quiet else "200").json()["chat"]
        if quiet:
            events(client, chat)
        with client.stream("GET", f"/chat/{chat}/events?seen=0") as stream:
            lines = stream.iter_lines()
            assert next(line for line in lines if line.startswith("event: ")) == "event: open"
            with httpx.Client(base_url=url, cookies=client.cookies) as other:
                other.post("/logout", headers=headers)
            start = time.monotonic()
            told = [line for line in lines if line.startswith("event: ")]
            assert time.monotonic() - start < 5
        assert ("event: over" in told) is quiet


def test_an_open_conversation_ends_with_its_run_and_takes_what_it_has_written_anew(
    client, headers, app, store, tiny, tmp_path
):
    run = str(enter_talker(store, tmp_path, tiny, ctx=256))
    chat = say(client, headers, run=run).json()["chat"]
    events(client, chat)
    held = app.state.desk.find(chat)
    before = held.partners
    # As recorded, in another file.
    copy = Path(shutil.copy2(tmp_path / "adapter.gguf", tmp_path / "copy"))
    copy.rename(tmp_path / "adapter.gguf")
    assert say(client, headers, run=run, chat=chat).status_code == 202
    assert held.partners != before
    events(client, chat, seen=1)
    with store.write() as session:
        session.delete(session.get(Run, int(run)))
    refused = say(client, headers, run=run, chat=chat)
    assert refused.status_code == 404
    assert f"There is no run {run}" in refused.json()["detail"]


def test_the_page_begins_with_the_newest_run_and_a_limit_that_fits_its_context(client):
    twin = client.get("/chat.json").json()
    assert twin["partner"]["id"] == twin["partners"][0]["id"]
    assert twin["draws"]["max_new_tokens"] == 256


def test_a_message_that_is_too_long_is_refused_in_words_of_the_page_and_put_back(client, headers):
    html = {"accept": "text/html", **headers}
    words = "\n" + "7 " * 600 + "<b>"
    place = client.post("/chat", data=FORM | {"run": "1", "message": words}, headers=html)
    twin = client.get(place.headers["location"].replace("/chat?", "/chat.json?")).json()
    [note, _] = [answer["note"] for answer in twin["chat"]["exchanges"][0]["answers"]]
    assert note.endswith("no room for an answer: shorten it. A run with a larger ctx has more room")
    assert twin["draft"] == words
    page = client.get(place.headers["location"], headers={"accept": "text/html"}).text
    assert "7 &lt;b&gt;</textarea>" in page


def test_an_end_of_line_is_one_letter_as_the_page_counts(client, headers):
    html = {"accept": "text/html", **headers}
    given = {"run": "1", "system": "a\r\n" * 3999 + "b\r\n"}
    assert client.post("/chat", data=FORM | given, headers=html).status_code == 303
    given["system"] += "c"
    assert client.post("/chat", data=FORM | given, headers=html).status_code == 422


def test_a_system_message_is_read_before_the_conversation(client, headers, tiny):
    answered = [
        answers(events(client, say(client, headers, system=text).json()["chat"]))
        for text in ("", "Say 9.")
    ]
    assert answered[0][0] == sampled(tiny, FORM["message"], 5)
    assert answered[0] != answered[1]


def test_a_reader_whose_connection_is_reset_is_missed(client, headers, app, caplog):
    chat = say(client, headers).json()["chat"]
    answers(events(client, chat))
    for _ in range(20):
        with socket.create_connection((client.base_url.host, client.base_url.port)) as reader:
            reader.sendall(f"GET /chat/{chat}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert reader.recv(60)
            # With what is unread, and so with a reset.
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    deadline = time.monotonic() + 20
    while app.state.desk.find(chat).watched:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "Traceback" not in caplog.text


def test_the_process_ends_where_nobody_reads_its_answers(client, headers, app, monkeypatch):
    monkeypatch.setattr(desks, "LEFT_SECONDS", 0.1)
    chat = say(client, headers).json()["chat"]
    deadline = time.monotonic() + 60
    held = app.state.desk.find(chat)
    while held.busy or app.state.desk.worker() is not None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert held.exchanges[0].answers[1].text
