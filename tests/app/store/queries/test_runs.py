from __future__ import annotations

import pytest
from sqlalchemy import event
from told_runs import enter, whole_run

from app.store.queries.runs import count_by_status, get_run, list_runs

RUNS = (
    {"name": "Addition r16", "status": "running", "last_reward": 0.7, "planned": 10,
     "completed": 4, "seconds_per_update": 2.0, "started_at": 100.0, "heartbeat_at": 400.0},
    {"name": "addition r8", "status": "queued"},
    {"name": "100% helpful_ppo", "status": "failed", "algorithm": "ppo", "last_reward": 0.1,
     "started_at": 100.0, "ended_at": 150.0},
    {"name": "sums", "status": "completed", "model": "SmolLM2-135M.gguf", "last_reward": 0.9,
     "started_at": 100.0, "ended_at": 900.0},
    {"name": "half written", "status": "draft"},
)  # fmt: skip


@pytest.fixture
def runs(store, tmp_path):
    for columns in RUNS:
        enter(store, tmp_path, **columns)
    return store


def names(store, **wanted):
    with store.read() as session:
        return [row.name for row in list_runs(session, **wanted).rows]


def test_the_newest_comes_first_and_a_draft_is_no_run(runs):
    assert names(runs) == ["sums", "100% helpful_ppo", "addition r8", "Addition r16"]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"text": "ADDITION"}, ["addition r8", "Addition r16"]),
        ({"text": "r16 addition"}, ["Addition r16"]),
        ({"text": "smollm2"}, ["sums"]),
        ({"text": "ppo"}, ["100% helpful_ppo"]),
        ({"text": "0%"}, ["100% helpful_ppo"]),
        ({"text": "l_p"}, ["100% helpful_ppo"]),
        ({"text": "n_r"}, []),
        ({"status": "running"}, ["Addition r16"]),
        ({"status": "queued"}, ["addition r8"]),
        ({"status": "finished"}, ["sums"]),
        ({"status": "failed"}, ["100% helpful_ppo"]),
        ({"status": "draft"}, []),
        ({"status": "nonsense"}, []),
        ({"sort": "oldest", "limit": 2}, ["Addition r16", "addition r8"]),
        ({"sort": "name", "limit": 3}, ["100% helpful_ppo", "Addition r16", "addition r8"]),
        ({"sort": "reward"}, ["sums", "Addition r16", "100% helpful_ppo", "addition r8"]),
        ({"sort": "longest", "limit": 3}, ["sums", "Addition r16", "100% helpful_ppo"]),
        ({"limit": 2, "offset": 2}, ["addition r8", "Addition r16"]),
    ],
)
def test_filters_and_orders(runs, wanted, found):
    assert names(runs, **wanted) == found


def test_a_page_knows_whether_there_are_more(runs):
    with runs.read() as session:
        page = list_runs(session, limit=3)
        assert (page.total, page.has_more) == (4, True)
        assert not list_runs(session, limit=3, offset=3).has_more


def test_what_follows_from_the_columns(runs):
    with runs.read() as session:
        row = next(row for row in list_runs(session).rows if row.status == "running")
    assert (row.progress, row.seconds_left, row.seconds_taken(160.0)) == (0.4, 12.0, 60.0)
    assert row.is_open


def test_how_many_there_are_of_each(runs):
    with runs.read() as session:
        assert count_by_status(session) == {"running": 1, "queued": 1, "failed": 1, "completed": 1}


def test_the_list_reads_one_table_however_long_the_runs_are(store, tmp_path):
    whole_run(store, tmp_path, 3)
    statements = []
    event.listen(store.engine, "before_cursor_execute", lambda *a: statements.append(a[2].lower()))
    with store.read() as session:
        [row] = list_runs(session).rows
        assert row.sparkline == [0.01, 0.02, 0.03]
        assert get_run(session, row.id).completed == 3
        assert get_run(session, row.id + 1) is None
    assert any("from runs" in statement for statement in statements)
    for table in ("metrics", "updates", "answers", "groups", "segments"):
        assert not any(table in statement for statement in statements)
