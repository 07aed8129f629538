from __future__ import annotations

import itertools
import re

import pytest
from read_runs import answer, group, held_out, read_run, unlearned
from sqlalchemy import event
from told_runs import groups

from app.store.queries.answers import Filters, all_matching, matching
from app.store.queries.heat import heat_of
from app.store.queries.places import place_of
from app.store.queries.search import search
from app.store.queries.trajectories import (
    answers_of,
    group_numbers,
    groups_of,
    occasions_of,
)


@pytest.fixture(scope="module")
def run(shared_store, tmp_path_factory):
    told = {
        1: [
            group(
                0,
                answer(0, "one", 0.1, tokens=5),
                answer(1, "two", 0.9, tokens=1, audit=("sycophantic",)),
                unlearned(2, "three", 0.5, "truncated", tokens=16, cut=True),
            )
        ],
        2: [
            group(0, answer(0, "four", 0.7, tokens=8), unlearned(1, "five", 0.7, "judge_dropped")),
            group(1, answer(0, "six", -1.0, tokens=2, audit=("verbose", "repetitive"))),
        ],
    }
    return read_run(
        shared_store, tmp_path_factory.mktemp("run"), told, evaluations={2: held_out("held", "out")}
    )


@pytest.fixture
def texts(shared_store, run):
    def ask(kind="train", **wanted):
        options = {
            name: wanted.pop(name) for name in ("update", "order", "limit") if name in wanted
        }
        with shared_store.read() as session:
            page = matching(session, run, kind, Filters(**wanted), **options)
        assert page.after is None
        return [row.text for row in page.answers]

    return ask


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, ["two", "five", "four", "three", "one", "six"]),
        ({"low": 0.7}, ["two", "five", "four"]),
        ({"high": 0.1}, ["one", "six"]),
        ({"low": 0.5, "high": 0.7}, ["five", "four", "three"]),
        ({"trained": True}, ["two", "four", "one", "six"]),
        ({"truncated": True}, ["three"]),
        ({"skip": "judge_dropped"}, ["five"]),
        ({"audit": "any"}, ["two", "six"]),
        ({"audit": "repetitive"}, ["six"]),
        ({"audit": "verb"}, []),
        ({"audit": "any", "low": 0.0}, ["two"]),
        ({"update": 2}, ["five", "four", "six"]),
        ({"update": 2, "trained": True}, ["four", "six"]),
        ({"order": "length", "trained": True}, ["four", "one", "six", "two"]),
        ({"kind": "evaluation"}, ["out", "held"]),
        ({"kind": "evaluation", "update": 2, "low": 0.1}, ["out"]),
    ],
)
def test_answers_are_chosen(texts, wanted, found):
    assert texts(**wanted) == found


def test_filters_know_whether_they_filter():
    assert not Filters().on
    assert Filters(low=0.0).on
    assert Filters(truncated=True).on


@pytest.mark.parametrize("order", ["reward", "advantage", "length"])
def test_pages_follow_each_other_without_a_gap_or_a_repetition(shared_store, tmp_path, order):
    told = {u: groups(u, count=2, size=5) for u in (1, 2, 3)}  # many answers are equally good
    run = read_run(shared_store, tmp_path, told)
    found, after = [], None
    with shared_store.read() as session:
        while True:
            page = matching(session, run, "train", Filters(), order=order, after=after, limit=4)
            found += [row.id for row in page.answers]
            after = page.after
            if after is None:
                break
        whole = matching(session, run, "train", Filters(), order=order, limit=100)
    assert found == [row.id for row in whole.answers]
    assert len(found) == len(set(found)) == 30


@pytest.mark.parametrize("after", ["", "1", "nan_1", "inf_2", "0.5_x", "x_1"])
def test_a_place_that_no_page_returned_is_refused(shared_store, run, after):
    with shared_store.read() as session, pytest.raises(ValueError):
        matching(session, run, "train", Filters(), after=after)


def test_all_of_them_come_in_the_order_in_which_they_were_written(shared_store, run):
    rows = itertools.chain.from_iterable(all_matching(shared_store, run, "train", Filters()))
    learned = all_matching(shared_store, run, "train", Filters(trained=True), 1)
    trained = itertools.chain.from_iterable(learned)
    assert [row.text for row in rows] == ["one", "two", "three", "four", "five", "six"]
    assert [row.text for row in trained] == ["one", "two"]


def test_nothing_is_held_while_they_are_taken_slowly(shared_store, run, monkeypatch):
    monkeypatch.setattr("app.store.queries.answers._CHUNK", 2)
    pieces = all_matching(shared_store, run, "train", Filters())
    assert len(next(pieces)) == 2
    assert shared_store.engine.pool.checkedout() == 0


def test_every_query_of_the_page_goes_by_an_index(file_store, tmp_path):
    """Or else it would read all answers of all runs."""
    run = read_run(file_store, tmp_path, {u: groups(u) for u in (1, 2, 3)})
    asked = []
    event.listen(
        file_store.engine,
        "before_cursor_execute",
        lambda _c, _cur, statement, parameters, *_: asked.append((statement, parameters)),
    )
    with file_store.read() as session:
        place_of(session, run, "train", 2)
        heat_of(session, run, "train", 2)
        group_numbers(session, run, "train", 2, "spread")
        line = groups_of(session, run, "train", 2)[0]
        answers_of(session, line.id)
        occasions_of(session, line.prompt_id)
        search(session, run, "answer quest")
        for order in ("reward", "advantage", "length"):
            for filters in (Filters(low=0.5), Filters(audit="any"), Filters(skip="truncated")):
                matching(session, run, "train", filters, order=order)
                matching(session, run, "train", filters, order=order, update=2)
                matching(session, run, "train", filters, order=order, after="0.5_3")
        plans = [
            (row[3], statement)
            for statement, parameters in list(asked)
            if statement.startswith("SELECT")
            for row in session.connection().exec_driver_sql(
                f"EXPLAIN QUERY PLAN {statement}", parameters
            )
        ]
    assert len(plans) > 40
    tables = r"SCAN (answers|groups|prompts|updates|runs|segments)\b"
    assert [plan for plan in plans if re.match(tables, plan[0])] == []
