from __future__ import annotations

import csv
import io
import math
import re
from contextlib import closing

import pytest
from fastapi.testclient import TestClient
from told_runs import enter, info, outcome, tell, values, whole_run

from app.routes.metrics import card_of, metrics
from app.settings import ServerSettings
from app.store.database import Store
from app.store.monitor import StoreMonitor
from app.store.queries.metrics import LastValue
from app.web import create_app
from trainer.health.resolve import guide_for


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """One for all of them, each with runs of its own."""
    with closing(Store.open(str(tmp_path_factory.mktemp("store") / "store.db"))) as opened:
        yield opened


@pytest.fixture(scope="module")
def get(store):
    client = TestClient(create_app(ServerSettings(), store), base_url="http://127.0.0.1")
    return client.get


@pytest.fixture(scope="module")
def run_id(store, tmp_path_factory):
    return whole_run(store, tmp_path_factory.mktemp("run"), 12).run_id


def cards(page):
    return {card.name: card for family in page.families for card in family.cards}


def test_each_metric_has_its_card_by_prefix_the_reward_first(store, run_id):
    page = metrics(run_id, store)
    assert [family.prefix for family in page.families] == [
        "reward", "policy", "optimizer", "timing"
    ]  # fmt: skip
    assert [card.short for card in page.families[0].cards] == ["mean", "max", "min", "std"]
    assert cards(page).keys() == values(1).keys()
    assert cards(page)["reward/mean"].value == 0.12
    assert cards(page)["reward/mean"].update == 12


def test_a_band_that_nothing_can_leave_is_not_drawn():
    guide = {entry.name: entry for entry in guide_for("sft", {})}
    loss = card_of("sft", LastValue("sft/loss", 3, 1.5), guide["sft/loss"])
    assert (loss.low, loss.high, loss.healthy) == (None, None, "falling")


def test_the_guide_is_on_the_card(store, run_id):
    card = cards(metrics(run_id, store))["policy/clip_fraction"]
    assert (card.low, card.high, card.healthy) == (0.02, 0.35, "0.02 to 0.35")
    assert card.means
    large, small = card.advice
    assert large.when.startswith("above 0.5")
    keys = [part.text for part in large.change if part.key]
    assert keys == ["training.lr", "grpo.grpo_epochs"]
    assert small.what == "The policy hardly moves."
    assert cards(metrics(run_id, store))["reward/std"].advice == [], "not watched in GRPO"


def test_a_band_that_hangs_on_the_start_is_a_number(store, tmp_path):
    monitor = StoreMonitor(store, enter(store, tmp_path))
    monitor.run_started(info(tmp_path))
    for update, entropy in enumerate((3.0, 1.5, 1.8, 0.9, 1.2, 0.3), start=1):
        tell(monitor, update, policy__entropy=entropy)
    monitor.run_finished(outcome(6))
    card = cards(metrics(monitor.run_id, store))["policy/entropy"]
    assert card.low == pytest.approx(1.5 / 3), "a third of the median of the first five"


def test_a_filter_lists_the_names_with_one_of_its_words(store, run_id, get):
    page = metrics(run_id, store, text="CLIP timing")
    listed = [name for name, card in cards(page).items() if card.listed]
    assert listed == ["policy/clip_fraction", "timing/update_seconds"]
    html = get(f"/runs/{run_id}/metrics?filter=clip").text
    table = html.split("<noscript>")[2].split("</noscript>")[0]
    assert "policy/clip_fraction" in table
    assert "reward/mean" not in table


def test_how_it_is_looked_at_is_in_the_address(run_id, get):
    query = "x=tokens&smooth=0.9&log=true&from=3&to=9&filter=clip&marks=&marks=resume"
    told = get(f"/runs/{run_id}/metrics.json?{query}").json()["view"]
    assert told == {
        "x": "tokens", "smooth": 0.9, "log": True, "first": 3, "last": 9, "filter": "clip",
        "marks": ["resume"],
    }  # fmt: skip
    html = get(f"/runs/{run_id}/metrics?{query}").text
    assert '<option value="tokens" selected>' in html
    assert html.count('type="checkbox" name="marks"') == 3
    assert html.count("checked") == 2


@pytest.mark.parametrize("query", ["x=depth", "smooth=1", "from=-1", "log=perhaps"])
def test_an_address_that_makes_no_sense_is_refused(run_id, get, query):
    assert get(f"/runs/{run_id}/metrics?{query}").status_code == 422


def test_a_run_without_numbers_says_when_they_come(store, tmp_path, get):
    run_id = enter(store, tmp_path, status="running")
    assert "There are no numbers yet" in get(f"/runs/{run_id}/metrics").text


def test_data_comes_as_columns(run_id, get):
    names = {"name": ["reward/mean", "policy/clip_fraction"]}
    told = get(f"/runs/{run_id}/metrics/data", params=names | {"from": 5, "to": 7}).json()
    mean, clip = told["curves"]
    assert mean["name"] == "reward/mean"
    assert mean["updates"] == [5, 6, 7]
    assert mean["steps"] == [10, 12, 14]
    assert mean["values"] == [0.05, 0.06, 0.07]
    assert clip["values"] == [0.1] * 3
    assert {len(mean[column]) for column in ("tokens", "times", "means")} == {3}
    assert told["last_id"] >= 84, "seven metrics in each of twelve updates"


def test_a_number_that_is_not_finite_is_null_and_counted(store, tmp_path, get):
    monitor = StoreMonitor(store, enter(store, tmp_path))
    monitor.run_started(info(tmp_path))
    tell(monitor, 1)
    tell(monitor, 2, reward__mean=math.nan)
    tell(monitor, 3, reward__mean=math.inf)
    monitor.run_finished(outcome(3))
    told = get(f"/runs/{monitor.run_id}/metrics/data?name=reward/mean").json()["curves"][0]
    assert told["values"] == [0.01, None, None]
    assert told["nonfinite"] == 2


def test_data_after_a_cursor(store, tmp_path, get):
    monitor = StoreMonitor(store, enter(store, tmp_path))
    monitor.run_started(info(tmp_path))
    tell(monitor, 1)
    monitor.settle()
    address = f"/runs/{monitor.run_id}/metrics/data?name=reward/mean"
    first = get(address).json()
    tell(monitor, 2)
    monitor.settle()
    later = get(f"{address}&after={first['last_id']}").json()
    assert later["curves"][0]["updates"] == [2]
    assert later["segment"] == first["segment"]
    monitor.run_finished(outcome(2))


@pytest.mark.parametrize(
    "query", ["", "name=a&points=1", "name=a&points=100000", "name=a&after=-1"]
)
def test_data_that_cannot_be_had_is_refused(run_id, get, query):
    assert get(f"/runs/{run_id}/metrics/data?{query}").status_code == 422


@pytest.mark.parametrize(
    "path", ["metrics", "metrics.json", "metrics/data?name=a", "metrics/markers",
             "metrics/table?name=a", "metrics/data.csv?name=a"]
)  # fmt: skip
def test_there_are_no_numbers_of_a_run_that_is_not_there(get, path):
    assert get(f"/runs/9999/{path}").status_code == 404


def test_the_newest_numbers_are_a_table(run_id, get):
    html = get(f"/runs/{run_id}/metrics/table?name=reward/mean").text
    assert '<div id="rows">' in html
    assert html.index(">12</td>") < html.index(">11</td>")
    assert "no numbers of that name" in get(f"/runs/{run_id}/metrics/table?name=none").text


def test_numbers_as_csv(run_id, get):
    answer = get(f"/runs/{run_id}/metrics/data.csv?name=reward/mean&name=reward/max")
    assert answer.headers["content-type"].startswith("text/csv")
    assert "attachment" in answer.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["metric"] for row in rows] == ["reward/max"] * 12 + ["reward/mean"] * 12
    assert rows[-1]["value"] == "0.12"
    assert rows[-1]["optimizer_step"] == "24"


def test_markers(store, tmp_path, get):
    monitor = StoreMonitor(store, enter(store, tmp_path))
    monitor.run_started(info(tmp_path))
    tell(monitor, 1)
    monitor.evaluation(1, [], {"eval/mean_reward": 0.5})
    monitor.run_finished(outcome(1))
    (marker,) = get(f"/runs/{monitor.run_id}/metrics/markers").json()
    assert (marker["kind"], marker["update"], marker["steps"]) == ("evaluation", 1, 2)


def test_a_table_has_its_twin(run_id, get):
    html = get(f"/runs/{run_id}/metrics/table?name=reward/mean").text
    assert f"/runs/{run_id}/metrics/table.json?name=reward/mean" in html
    rows = get(f"/runs/{run_id}/metrics/table.json?name=reward/mean").json()["rows"]
    assert [row["update"] for row in rows] == list(range(12, 0, -1))


def test_a_time_says_its_zone_where_no_script_writes_it_in_local_time(run_id, get):
    html = get(f"/runs/{run_id}/metrics/table?name=reward/mean").text
    assert re.search(r'<time datetime="[^"]+">\d{4}-\d\d-\d\d \d\d:\d\d UTC</time>', html)
