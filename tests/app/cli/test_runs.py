from __future__ import annotations

import json
import os
from contextlib import closing

import pytest
from told_runs import enter, info, tell, the_run, whole_run
from typer.testing import CliRunner

from app.cli.main import app
from app.store.database import Store
from app.store.models import Request
from app.store.monitor import StoreMonitor
from trainer.monitor import Outcome


@pytest.fixture
def url(tmp_path):
    return str(tmp_path / "store.db")


@pytest.fixture
def store(url):
    with closing(Store.open(url)) as opened:
        yield opened


@pytest.fixture
def runs(url):
    """Calls the command in this process."""

    def call(*arguments, cells=80):
        wide = {"COLUMNS": str(cells), "TERM": "dumb"}
        return CliRunner().invoke(app, ["runs", *map(str, arguments), "--store", url], env=wide)

    return call


@pytest.fixture
def several(store, tmp_path):
    whole_run(store, tmp_path, 5)
    enter(store, tmp_path, name="\x1b[2J a name that is far too long for a line of eighty cells",
          status="failed", algorithm="ppo", model="SmolLM2-135M-Instruct-Q4_1.gguf",
          planned=2000, completed=1999, last_reward=-1234.5, started_at=0.0, ended_at=9e4,
          sparkline=[0.1, None, 0.9])  # fmt: skip
    return store


def test_the_list_fits_into_eighty_cells(several, runs):
    done = runs("list")
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in done.stdout
    for word in ("2  ␛[2J a name", "…", "ppo", "failed", "1999/2000", "▁ █", "1d 01h"):
        assert word in lines[1]
    for word in ("1  addition", "grpo", "completed", "5/20", "▁▃▄▆█", "0.050"):
        assert word in lines[2]


@pytest.mark.parametrize("cells", [50, 70, 80, 120, 200])
def test_a_wide_terminal_has_room_for_the_model_and_a_narrow_one_not_for_rewards(
    several, runs, cells
):
    lines = runs("list", cells=cells).stdout.splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) <= cells
    assert ("SmolLM2-135M" in lines[1]) == (cells >= 120)
    assert ("▁ █" in lines[1]) == (cells >= 80)


def test_the_list_is_filtered_and_machines_read_it_too(several, runs):
    found = json.loads(runs("list", "addition", "--json").stdout)
    assert [(row["id"], row["status"], row["completed"]) for row in found] == [(1, "completed", 5)]
    assert json.loads(runs("list", "--status", "failed", "--json").stdout)[0]["id"] == 2
    assert runs("list", "nothing", "like", "it").stderr == "No run is like that.\n"


def test_a_store_without_runs_says_how_to_make_one(runs):
    done = runs("list")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "`retrograd train` makes one" in done.stderr


def test_a_run_is_shown_with_its_numbers_beside_what_is_healthy(store, runs, tmp_path):
    monitor = StoreMonitor(store, enter(store, tmp_path))
    monitor.run_started(info(tmp_path))
    for update in range(1, 9):
        tell(monitor, update, policy__clip_fraction=0.9, audit__verbosity=0.1)
    monitor.run_finished(Outcome("failed", 8, None, "the reward program died"))
    done = runs("show", "1")
    assert done.exit_code == 0, done.stderr
    for words in (
        "1  addition  failed",
        "update     8 of 20",
        "outcome    the reward program died",
        "reward/mean           0.08  rising over 20 updates",
        "policy/clip_fraction   0.9  0.02 to 0.35",
        "audit/verbosity        0.1  up to 0.3",
        "policy/clip_fraction is 0.9, above 0.5, since update",
        "Lower training.lr",
        f"config  {tmp_path}/run.toml (6 bytes)",
    ):
        assert words in done.stdout
    (tmp_path / "run.toml").write_text("another one")
    said = " ".join(runs("show", "1").stdout.split())
    assert "run.toml (6 bytes): was written again after it was recorded, and is another" in said
    shown = json.loads(runs("show", "1", "--json").stdout)
    assert (shown["status"], shown["metrics"]["reward/mean"]) == ("failed", 0.08)
    assert runs("show", "9").exit_code == 2


def test_a_run_is_asked_to_stop(store, runs, tmp_path):
    run_id = enter(
        store,
        tmp_path,
        status="running",
        host=os.uname().nodename,
        pid=os.getpid(),
        heartbeat_at=9e12,
    )
    done = runs("stop", str(run_id))
    assert done.exit_code == 0, done.stderr
    with store.read() as session:
        assert session.get_one(Request, 1).kind == "stop"
    assert runs("stop", "9").exit_code != 0


def test_a_run_is_deleted_after_a_question(several, runs):
    done = runs("delete", "1")
    assert done.exit_code != 0, "nobody said yes"
    assert "Delete run 1 (addition, 5 updates)?" in done.stderr
    assert the_run(several, 1).completed == 5
    assert runs("delete", "1", "--yes").exit_code == 0
    assert [row["id"] for row in json.loads(runs("list", "--json").stdout)] == [2]


def test_a_run_of_texts_is_told_by_its_loss(store, runs, tmp_path):
    enter(store, tmp_path, name="warm", status="completed", algorithm="sft", planned=3, completed=3,
          sparkline=[2.5, None, 1.25], last_evaluation=1.5)  # fmt: skip
    listed = runs("list", cells=120).stdout.splitlines()
    assert "loss" in listed[0]
    assert "reward" not in listed[0]
    assert "1.250" in listed[1]
    shown = runs("show", "1").stdout
    assert "reward" not in shown
    assert "█ ▁  1.250" in shown
    assert "held-out loss  1.500" in shown


def test_a_run_is_named_by_its_name_where_no_other_has_it(several, runs, store, tmp_path):
    assert "addition" in runs("show", "addition").stdout
    assert runs("export", "addition").stdout == runs("export", 1).stdout != ""
    enter(store, tmp_path, name="addition")
    done = runs("show", "addition")
    assert done.exit_code == 2
    assert done.stderr == '2 runs are called "addition": 1, 3. Name one by its number.\n'


@pytest.mark.parametrize("command", ["show", "export", "stop", "resume", "delete"])
def test_a_name_that_no_run_has_is_answered_in_own_words(several, runs, command):
    done = runs(command, "abc")
    assert done.exit_code == 2
    assert 'There is no run called "abc"' in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "--limit", 10**21),
        ("show", 10**21),
        ("stop", 10**21),
        ("delete", 10**21, "--yes"),
        ("resume", 10**21),
        ("export", 10**21),
        ("compare", 1, 2, "--last", 10**21),
    ],
)
def test_a_number_that_no_store_holds_is_refused_and_no_fault(runs, arguments):
    done = runs(*arguments)
    assert done.exit_code == 2
    assert str(10**21) in done.output or str(2**63 - 1) in done.output
    assert "fault of retrograd" not in done.output
