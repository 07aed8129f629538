from __future__ import annotations

from collections.abc import Iterator
from math import nan

import pytest
from sqlalchemy.orm import Session
from told_runs import enter, info, outcome, tell, whole_run

from app.store.database import Store
from app.store.monitor import StoreMonitor
from app.store.queries.compare import choices, course_of, metrics_of, values_at


@pytest.fixture
def session(tmp_path) -> Iterator[Session]:
    """Runs 1 (20 updates; the reward of the 5th is not finite), 2 (3 updates, and a metric of its
    own) and 3, which has not started."""
    store = Store.open(str(tmp_path / "store.db"))
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
    monitor = StoreMonitor(store, enter(store, tmp_path / "one"))
    monitor.run_started(info(tmp_path / "one"))
    for update in range(1, 21):
        tell(monitor, update, **({"reward__mean": nan} if update == 5 else {}))
    monitor.run_finished(outcome(20))
    second = StoreMonitor(store, enter(store, tmp_path / "two"))
    second.run_started(info(tmp_path / "two"))
    for update in range(1, 4):
        tell(second, update, critic__loss=1.0)
    second.run_finished(outcome(3))
    enter(store, tmp_path / "three", status="queued", started_at=None)
    with store.read() as session:
        yield session
    store.close()


def test_a_run_that_has_started_can_be_chosen(session):
    assert [choice.id for choice in choices(session)] == [2, 1]
    assert [choice.id for choice in choices(session, limit=1)] == [2]
    assert choices(session)[1].last_reward == pytest.approx(0.2)


def test_metrics_are_those_of_any_of_the_runs(session):
    one, both = metrics_of(session, [1]), metrics_of(session, [1, 2])
    assert "reward/mean" in one
    assert set(both) - set(one) == {"critic/loss"}
    assert both == sorted(both)


def test_the_mean_of_evaluations_leaves_the_one_before_training_out(tmp_path):
    store = Store.open(str(tmp_path / "store.db"))
    monitor = StoreMonitor(store, enter(store, tmp_path))
    monitor.run_started(info(tmp_path))
    monitor.evaluation(0, [], {"eval/mean_reward": 0.1})
    for update in (1, 2):
        tell(monitor, update)
        monitor.evaluation(update, [], {"eval/mean_reward": 0.4 + update / 10})
    monitor.run_finished(outcome(2))
    with store.read() as session:
        course = course_of(session, 1, "eval/mean_reward")
    store.close()
    assert course is not None
    assert (course.first, course.lowest, course.recent) == (0, 0.1, 2)
    assert course.mean == pytest.approx(0.55)


def test_the_course_of_a_metric_in_a_few_numbers(session):
    course = course_of(session, 1, "reward/mean")
    assert course is not None
    assert (course.first, course.last) == (1, 20)
    assert (course.lowest, course.highest, course.newest) == (0.01, 0.2, 0.2)
    assert course.mean == pytest.approx(sum(range(11, 21)) / 1000)
    assert course.recent == 10
    assert course_of(session, 1, "critic/loss") is None
    assert course_of(session, 1, "nothing") is None


def test_values_at_chosen_updates(session):
    assert values_at(session, 1, "reward/mean", [1, 5, 20, 99]) == {1: 0.01, 5: None, 20: 0.2}


def test_rows_that_were_superseded_do_not_count(tmp_path):
    store = Store.open(str(tmp_path / "store.db"))
    monitor = whole_run(store, tmp_path, 10, end=False)
    again = StoreMonitor(store, monitor.run_id)
    again.run_started(info(tmp_path, resumed_from_update=4))
    tell(again, 5, reward__mean=0.9)
    again.run_finished(outcome(5))
    with store.read() as session:
        course = course_of(session, monitor.run_id, "reward/mean")
        assert course is not None
        assert (course.last, course.newest) == (5, 0.9)
        assert values_at(session, monitor.run_id, "reward/mean", [5, 6]) == {5: 0.9}
    store.close()
