from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from told_runs import enter, whole_run

from app.settings import ServerSettings
from app.store.database import Store
from app.web import create_app

TEXT = '# naïve\r\n[run]\nname = "a\\u202eb"\n\t[grpo]\n'


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Iterator[Store]:
    folder: Path = tmp_path_factory.mktemp("config")
    store = Store.open(str(folder / "store.db"))
    for name in ("one", "two"):
        (folder / name).mkdir()
        whole_run(store, folder / name, 1)
    (folder / "waiting").mkdir()
    enter(store, folder / "waiting", status="queued", config_text=TEXT, name='strange "name" ü/')
    yield store
    store.close()


@pytest.fixture(scope="module")
def client(store) -> TestClient:
    app = create_app(ServerSettings(), store)
    return TestClient(app, base_url="http://127.0.0.1:8765", headers={"accept": "text/html"})


def test_the_page_has_the_keys_the_file_and_where_it_all_comes_from(client):
    page = client.get("/runs/1/config")
    assert page.status_code == 200
    for words in ("[grpo]", "kl_coefficient", "[run]", "llama-cpp-python", "a small one"):
        assert words in page.text
    twin = client.get("/runs/1/config.json").json()
    assert [table["name"] for table in twin["tables"]] == ["observe", "audit", "grpo"]
    assert twin["facts"] == {"model": "a small one"}


def test_a_run_that_waits_shows_its_file(client):
    page = client.get("/runs/3/config")
    assert "has not started yet" in page.text
    assert "naïve" in page.text
    assert client.get("/runs/3/config.json").json()["tables"] == []


def test_the_download_is_the_file_as_it_was(client):
    answer = client.get("/runs/3/config.toml")
    assert answer.content == TEXT.encode()
    assert tomllib.loads(answer.text)["run"] == {"name": "a\u202eb"}
    assert answer.headers["content-type"] == "application/toml"
    assert answer.headers["content-disposition"] == (
        "attachment; filename=\"run-3.toml\"; filename*=utf-8''strange%20%22name%22%20%C3%BC_.toml"
    )


def test_a_file_without_text_is_not_there(client, store, tmp_path):
    number = enter(store, tmp_path, config_text="")
    assert client.get(f"/runs/{number}/config.toml").status_code == 404
    assert "was not stored" in client.get(f"/runs/{number}/config").text


def test_held_against_another_run_only_what_differs_is_shown(client):
    same = client.get("/runs/1/config.json?against=2").json()["other"]
    assert (same["id"], same["settings"]) == (2, [])
    unlike = client.get("/runs/1/config.json?against=3").json()["other"]
    assert {"key": "grpo.grpo_epochs", "values": ["2", "—"], "name": False} in unlike["settings"]
    assert "Differences" in client.get("/runs/1/config?against=3").text
    chosen = {choice["id"] for choice in client.get("/runs/1/config.json").json()["choices"]}
    assert 1 not in chosen
    assert 2 in chosen


def test_runs_that_are_not_there_are_not_found(client):
    assert client.get("/runs/99/config").status_code == 404
    assert client.get("/runs/1/config?against=99").status_code == 404
    assert client.get("/runs/1/config?against=x").status_code == 422
