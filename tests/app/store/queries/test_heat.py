from __future__ import annotations

import pytest
from read_runs import answer, group, held_out, read_run
from told_runs import info, tell, whole_run

from app.store.monitor import StoreMonitor
from app.store.queries.heat import COLUMNS, NEAR, Scale, heat_of, latest_of


def rewarded(*rewards):
    return [group(0, *(answer(m, f"answer {m}", reward) for m, reward in enumerate(rewards)))]


def heat(store, run_id, kind="train", opened=None):
    with store.read() as session:
        return heat_of(session, run_id, kind, opened)


def test_a_column_has_the_share_of_answers_at_each_level(shared_store, tmp_path):
    run = read_run(shared_store, tmp_path, {1: rewarded(0.0, 0.0, 0.3, 1.0), 2: rewarded(1.0, 1.0)})
    found = heat(shared_store, run)
    assert [(column.first, column.last) for column in found.columns] == [(1, 1), (2, 2)]
    assert found.columns[0].shares == (0.5, 0.25, 0.0, 0.0, 0.25)
    assert found.columns[1].shares == (0.0, 0.0, 0.0, 0.0, 1.0)
    assert found.columns[0].mean == pytest.approx(0.325)
    assert (found.updates, found.first, found.latest, found.near) == (2, 1, 2, ())


def test_the_scale_goes_from_nothing_or_the_lowest_to_the_highest(shared_store, tmp_path):
    low = read_run(shared_store, tmp_path, {1: rewarded(-2.0, 3.0)})
    high = read_run(shared_store, tmp_path, {1: rewarded(5.0, 8.0)})
    level = read_run(shared_store, tmp_path, {1: rewarded(0.0, 0.0)})
    assert heat(shared_store, low).scale == Scale(-2.0, 3.0)
    assert heat(shared_store, high).scale == Scale(0.0, 8.0)
    assert heat(shared_store, level).scale == Scale(0.0, 1.0)


def test_the_highest_reward_is_in_the_highest_level():
    scale = Scale(0.0, 1.0)
    assert scale.edges == pytest.approx((0.2, 0.4, 0.6, 0.8))
    assert [scale.place(reward) for reward in (-1.0, 0.25, 1.0, 2.0)] == [0.0, 0.25, 1.0, 1.0]


def test_a_long_run_has_several_updates_in_a_column_and_those_near_the_open_one_apart(
    shared_store, tmp_path
):
    count = 2 * COLUMNS + 30
    rewards = {u: rewarded(0.0, 1.0 if u > count // 2 else 0.0) for u in range(1, count + 1)}
    run = read_run(shared_store, tmp_path, rewards)
    found = heat(shared_store, run, opened=100)
    assert len(found.columns) <= COLUMNS
    assert [found.columns[0].first, found.columns[-1].last] == [1, count]
    firsts = [column.first for column in found.columns[1:]]
    assert firsts == [column.last + 1 for column in found.columns[:-1]]
    assert all(c.first <= c.middle <= c.last for c in found.columns)
    assert found.columns[0].shares[0] == 1.0
    assert found.columns[-1].shares == (0.5, 0.0, 0.0, 0.0, 0.5)
    assert [column.first for column in found.near] == list(range(100 - NEAR, 100 + NEAR + 1))
    assert heat(shared_store, run, opened=1).near[0].first == 1


def test_an_update_under_way_is_there_before_its_numbers(shared_store, tmp_path):
    run = read_run(shared_store, tmp_path, {1: rewarded(0.5)}, begun=rewarded(0.0, 1.0), end=False)
    found = heat(shared_store, run)
    assert [(c.first, c.status) for c in found.columns] == [(1, "trained"), (2, "begun")]
    assert found.columns[1].shares == (0.5, 0.0, 0.0, 0.0, 0.5)
    with shared_store.read() as session:
        assert latest_of(session, run, "train") == 2


def test_evaluations_have_a_strip_of_their_own(shared_store, tmp_path):
    evaluations = {0: held_out("a", "b"), 2: held_out("c")}
    run = read_run(
        shared_store, tmp_path, {1: rewarded(0.5), 2: rewarded(1.0)}, evaluations=evaluations
    )
    assert [column.first for column in heat(shared_store, run, "evaluation").columns] == [0, 2]
    assert heat(shared_store, run, "evaluation").scale == Scale(0.0, 0.25)
    assert [column.first for column in heat(shared_store, run).columns] == [1, 2]


def test_nothing_has_no_columns(shared_store, tmp_path):
    run = read_run(shared_store, tmp_path, {})
    assert heat(shared_store, run).columns == ()
    assert heat(shared_store, run).latest is None


def test_what_was_superseded_is_not_there(shared_store, tmp_path):
    first = whole_run(shared_store, tmp_path, 5, end=False)

    again = StoreMonitor(shared_store, first._run_id)
    again.run_started(info(tmp_path, resumed_from_update=3))
    tell(again, 4)
    again.settle()
    again.abandon()
    assert [column.first for column in heat(shared_store, first._run_id).columns] == [1, 2, 3, 4]
