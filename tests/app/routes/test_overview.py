from __future__ import annotations

import dataclasses
from contextlib import closing

import pytest
from fastapi.testclient import TestClient
from told_runs import enter, group, info, outcome, tell, values, whole_run

from app.routes.overview import overview
from app.settings import ServerSettings
from app.store.database import Store
from app.store.models import Run
from app.store.monitor import StoreMonitor
from app.web import create_app


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """One for all of them, each with runs of its own."""
    with closing(Store.open(str(tmp_path_factory.mktemp("store") / "store.db"))) as opened:
        yield opened


@pytest.fixture(scope="module")
def get(store):
    client = TestClient(create_app(ServerSettings(), store), base_url="http://127.0.0.1")
    return client.get


def test_a_grpo_run_at_a_glance(store, get, tmp_path):
    run_id = whole_run(store, tmp_path, 12).run_id
    page = overview(run_id, store)
    assert [tile.name for tile in page.tiles] == [
        "reward / mean", "clip fraction", "groups without signal", "answer length", "sampler gap",
        "speed",
    ]  # fmt: skip
    assert [headline.card.name for headline in page.headlines] == [
        "reward/mean", "policy/clip_fraction"
    ]  # fmt: skip
    assert page.headlines[0].held_out == "eval/mean_reward"
    assert (page.headlines[1].card.low, page.headlines[1].card.high) == (0.02, 0.35)
    html = get(f"/runs/{run_id}").text
    assert 'data-names="[&#34;reward/mean&#34;, &#34;eval/mean_reward&#34;]"' in html
    assert f'href="/runs/{run_id}/trajectories?update=12"' in html
    assert "answer 12 0 3" in html


def test_a_supervised_run_shows_its_loss(store, get, tmp_path):
    monitor = StoreMonitor(store, enter(store, tmp_path, algorithm="sft"))
    monitor.run_started(info(tmp_path, algorithm="sft", params={"training": {"epochs": 3}}))
    for update in (1, 2):
        loss = {"sft/loss": 2.0 / update, "sft/epoch": update / 4, "optimizer/step": update}
        monitor.metrics(update, "trained", loss)
    monitor.evaluation(2, [], {"eval/loss": 1.5})
    monitor.run_finished(outcome(2))
    page = overview(monitor.run_id, store)
    assert [headline.card.name for headline in page.headlines] == [
        "sft/loss", "optimizer/grad_norm"
    ]  # fmt: skip
    assert page.headlines[0].held_out == "eval/loss"
    assert page.headlines[0].last_evaluation == (2, 1.5)
    assert page.tiles[0].value == "1.00"
    assert page.tiles[0].better
    html = get(f"/runs/{monitor.run_id}").text
    assert "Supervised runs learn from texts" in html
    assert "clip fraction" not in html


def test_a_run_that_has_only_begun_has_a_page(store, get, tmp_path):
    run_id = enter(store, tmp_path, status="queued", params={})
    html = get(f"/runs/{run_id}").text
    assert "It speaks once the first update has ended" in html
    assert "The first answers come with the first update" in html


def test_there_is_no_page_of_a_run_that_is_not_there(get):
    assert get("/runs/9999").status_code == 404


def test_a_reward_that_may_be_gamed_is_said_at_the_top(store, get, tmp_path):
    run_id = whole_run(store, tmp_path, 2).run_id
    assert "may be gamed" not in get(f"/runs/{run_id}").text
    with store.write() as session:
        session.get_one(Run, run_id).audited = ["verbosity"]
    html = get(f"/runs/{run_id}").text
    assert "The reward may be gamed: verbosity over its limit." in html
    assert f"/runs/{run_id}/trajectories?audit=verbose" in html


def test_what_models_write_is_text_and_nothing_else(store, get, tmp_path):
    monitor = StoreMonitor(store, enter(store, tmp_path))
    monitor.run_started(info(tmp_path))
    monitor.trajectories(1, [group(0, [("<script>alert(1)</script>", 1.0), ("<b>", 0.0)])])
    monitor.metrics(1, "trained", values(1))
    monitor.run_finished(outcome(1))
    html = get(f"/runs/{monitor.run_id}").text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "<script>alert" not in html


def test_an_answer_that_was_not_trained_on_says_so(store, get, tmp_path):
    monitor = StoreMonitor(store, enter(store, tmp_path))
    monitor.run_started(info(tmp_path))
    told = group(0, [("cut", 0.0), ("whole", 1.0)])
    cut = dataclasses.replace(told.trajectories[0], trained=False, skip_reason="truncated")
    monitor.trajectories(1, [dataclasses.replace(told, trajectories=[cut, told.trajectories[1]])])
    monitor.metrics(1, "trained", values(1))
    monitor.run_finished(outcome(1))
    assert get(f"/runs/{monitor.run_id}").text.count("not trained on") == 1


def test_the_same_as_json(store, get, tmp_path):
    monitor = StoreMonitor(store, enter(store, tmp_path))
    monitor.run_started(info(tmp_path))
    tell(monitor, 1)
    monitor.run_finished(outcome(1))
    told = get(f"/runs/{monitor.run_id}.json").json()
    assert told["run"]["status"] == "completed"
    assert len(told["tiles"]) == 6
    assert told["latest"]["update"] == 1
