from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from told_runs import PARAMS, enter, info, outcome, tell

from app.routes.compare import TABLE_ROWS
from app.settings import ServerSettings
from app.store.database import Store
from app.store.monitor import StoreMonitor
from app.web import create_app


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Iterator[Store]:
    """Seven runs of 40 updates, the second with other settings and a metric of its own."""
    folder: Path = tmp_path_factory.mktemp("compare")
    store = Store.open(str(folder / "store.db"))
    for number in range(1, 8):
        own = folder / str(number)
        own.mkdir()
        monitor = StoreMonitor(store, enter(store, own, name=f"run-{number}"))
        started = info(own, updates=40)
        if number == 2:
            params = PARAMS | {"grpo": PARAMS["grpo"] | {"grpo_epochs": 5}}
            started = dataclasses.replace(started, params=params)
        monitor.run_started(started)
        for update in range(1, 41 if number < 3 else 3):
            tell(monitor, update, **({"critic__loss": 0.5} if number == 2 else {}))
        monitor.run_finished(outcome(40))
    yield store
    store.close()


@pytest.fixture(scope="module")
def client(store) -> TestClient:
    app = create_app(ServerSettings(), store)
    return TestClient(app, base_url="http://127.0.0.1:8765", headers={"accept": "text/html"})


def told(client, query):
    return client.get(f"/compare.json?{query}").json()


def test_without_two_runs_there_is_a_choice_of_runs(client):
    for query in ("", "?run=1"):
        page = client.get(f"/compare{query}").text
        assert "Choose 2 to 6 runs" in page
        assert page.count('type="checkbox"') == 7
    assert 'id="run-1" name="run" value="1" checked' in client.get("/compare?run=1").text


def test_runs_stand_in_the_order_of_the_address_each_with_a_pattern_of_its_own(client):
    found = told(client, "run=3&run=1&run=3&run=2")
    assert [run["id"] for run in found["runs"]] == [3, 1, 2]
    assert len({run["dash"] for run in found["runs"]}) == 3
    assert found["runs"][1]["without"] == "/compare?run=3&run=2&metric=reward%2Fmean&x=update"
    page = client.get("/compare?run=1&run=2").text
    assert 'stroke-dasharray="7 3"' in page
    assert "line-2" in page


def test_more_than_six_and_runs_that_are_gone_are_named(client):
    found = told(client, "run=99&" + "&".join(f"run={n}" for n in range(1, 8)))
    assert [run["id"] for run in found["runs"]] == [1, 2, 3, 4, 5]
    assert (found["missing"], found["left_out"]) == ([99], [6, 7])
    page = client.get("/compare?run=99&run=1&run=2").text
    assert "There is no run 99" in page


def test_the_metric_is_in_the_address_and_one_that_is_not_there_gives_way(client):
    found = told(client, "run=1&run=2&metric=critic/loss")
    assert found["metric"] == "critic/loss"
    assert found["runs"][0]["course"] is None
    assert found["runs"][1]["course"]["newest"] == 0.5
    assert "no number of this metric" in client.get("/compare?run=1&run=2&metric=critic/loss").text
    assert told(client, "run=1&run=2&metric=nothing")["metric"] == "reward/mean"


def test_the_table_has_round_updates_and_the_last_of_each_run(client):
    rows = told(client, "run=1&run=3")["rows"]
    updates = [row["update"] for row in rows]
    assert updates[:4] == [1, 2, 4, 6]
    assert updates[-1] == 40
    assert len(updates) <= TABLE_ROWS + 3
    assert rows[0]["values"] == [0.01, 0.01]
    assert rows[2]["values"] == [0.04, None]


def test_only_what_differs_is_told(client):
    found = told(client, "run=1&run=2")["differences"]
    assert {"key": "grpo.grpo_epochs", "values": ["2", "5"], "name": False} in found
    assert [d["key"] for d in found] == ["grpo.grpo_epochs"]
    assert told(client, "run=1&run=3")["differences"] == []
    assert "their configurations are the same" in client.get("/compare?run=1&run=3").text


def test_the_axis_is_one_of_four(client):
    assert 'data-x="tokens"' in client.get("/compare?run=1&run=2&x=tokens").text
    assert client.get("/compare?run=1&run=2&x=moon").status_code == 422
    assert client.get("/compare?run=x").status_code == 422


def test_an_empty_store_says_how_to_begin(tmp_path):
    store = Store.open(str(tmp_path / "store.db"))
    app = create_app(ServerSettings(), store)
    client = TestClient(app, base_url="http://127.0.0.1:8765")
    assert "There is no run in this store yet" in client.get("/compare").text
    store.close()


def test_two_runs_of_texts_are_compared_by_their_loss(client, store, tmp_path):
    numbers = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        started = info(tmp_path / name, algorithm="sft", params={})
        monitor = StoreMonitor(store, enter(store, tmp_path / name, algorithm="sft"))
        monitor.run_started(started)
        monitor.metrics(1, "trained", {"optimizer/step": 1.0, "sft/loss": 1.25, "sft/tokens": 9.0})
        monitor.run_finished(outcome(1))
        numbers.append(monitor.run_id)
    query = "&".join(f"run={number}" for number in numbers)
    assert told(client, query)["metric"] == "sft/loss"
    assert dict(told(client, query)["axes"])["tokens"] == "tokens learnt"
    assert dict(told(client, query + "&run=1")["axes"])["tokens"] == "tokens"
    assert '<span class="sub">loss</span> 1.25' in client.get("/compare").text


def test_a_long_value_is_folded(tmp_path):
    store = Store.open(str(tmp_path / "store.db"))
    targets = [f"blk.{layer}.attn_q.weight" for layer in range(28)]
    for number, chosen in enumerate((targets, ["attention"])):
        own = tmp_path / str(number)
        own.mkdir()
        monitor = StoreMonitor(store, enter(store, own, name=f"run-{number}"))
        params = PARAMS | {"lora": {"targets": chosen}}
        monitor.run_started(dataclasses.replace(info(own, updates=1), params=params))
        monitor.run_finished(outcome(0))
    app = create_app(ServerSettings(), store)
    html = TestClient(app, base_url="http://127.0.0.1").get("/compare?run=1&run=2").text
    store.close()
    assert html.count('<details class="long">') == 1
    assert "blk.27.attn_q.weight" in html
