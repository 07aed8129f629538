from __future__ import annotations

import dataclasses
import json
from contextlib import closing

import pytest
from told_runs import PARAMS, enter, group, info, outcome, tell

from app.store.database import Store
from app.store.monitor import StoreMonitor


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """Two runs called addition, one called fast, and one of texts; a draft."""
    folder = tmp_path_factory.mktemp("compare")
    with closing(Store.open(str(folder / "store.db"))) as store:
        for name, epochs, updates in (("addition", 2, 20), ("addition", 2, 3), ("fast", 5, 12)):
            monitor = StoreMonitor(store, enter(store, folder, name=name))
            params = PARAMS | {"grpo": PARAMS["grpo"] | {"grpo_epochs": epochs}}
            monitor.run_started(info(folder, name=name, params=params))
            for update in range(1, updates + 1):
                tell(monitor, update)
            monitor.evaluation(
                updates, [group(0, [("held out", 0.5)])], {"eval/mean_reward": epochs / 8}
            )
            monitor.run_finished(outcome(updates))
        monitor = StoreMonitor(store, enter(store, folder, name="warm", algorithm="sft"))
        texts = info(folder, name="warm", algorithm="sft", params={"sft": {"data": "a.jsonl"}})
        monitor.run_started(texts)
        for update in (1, 2):
            monitor.metrics(update, "trained", {"sft/loss": 2.0 / update, "sft/tokens": 30.0})
        monitor.run_finished(dataclasses.replace(outcome(2)))
        enter(store, folder, name="draft", status="draft")
    return str(folder / "store.db")


@pytest.fixture
def compare(retrograd, url):
    """The installed command."""
    return lambda *arguments: retrograd("runs", "compare", *arguments, "--store", url)


def test_two_runs_side_by_side_by_number_and_by_name(compare):
    done = compare("1", "fast")
    assert done.returncode == 0, done.stderr
    words = [line.split() for line in done.stdout.splitlines()]
    assert ["grpo.grpo_epochs", "2", "5"] in words
    assert ["1", "addition", "0.200", "0.200", "20", "0.155"] in words
    assert ["3", "fast", "0.120", "-0.080", "0.120", "-0.080", "12", "0.075", "-0.080"] in words
    assert ["3", "fast", "0.625", "+0.375", "0.625", "+0.375", "12", "0.625", "+0.375"] in words
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_machines_read_it_too(compare):
    found = json.loads(compare("1", "3", "4", "--last", "2", "--json").stdout)
    first, second, warm = found["runs"]
    assert (first["id"], first["tokens"], second["completed"]) == (1, 480, 12)
    reward = first["metrics"]["reward/mean"]
    assert (reward["newest"], reward["best"], reward["best_update"]) == (0.2, 0.2, 20)
    assert reward["mean"] == pytest.approx(0.195)
    assert warm["metrics"]["sft/loss"]["best"] == 1.0
    assert {"key": "grpo.grpo_epochs", "values": {"1": 2, "3": 5, "4": None}} in found[
        "differences"
    ]


def test_another_metric_may_be_asked_for(compare):
    done = compare("1", "3", "--metric", "policy/clip_fraction")
    assert "policy/clip_fraction" in done.stdout.splitlines()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Missing argument"),
        (["1"], "Name two runs or more"),
        (["3", "fast"], "Name two runs or more"),
        (["1", "99"], "There is no run 99 in"),
        (["1", "9" * 40], f'There is no run called "{"9" * 40}" in'),
        (["1", "slow\x1b[2J"], 'There is no run called "slow␛[2J" in'),
        (["1", "5"], "There is no run 5 in"),
        (["1", "draft"], 'There is no run called "draft" in'),
        (["3", "addition"], '2 runs are called "addition": 1, 2. Name one by its number.'),
        (["1", "3", "--metric", "no/such"], "None of these runs has a metric 'no/such'."),
    ],
)
def test_what_cannot_be_compared_is_said(compare, arguments, words):
    done = compare(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stdout == ""
    if "There is no run" in words:
        assert "`retrograd runs list` shows them" in done.stderr
