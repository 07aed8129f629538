from __future__ import annotations

from told_runs import enter, group, info, outcome, values, whole_run

from app.store.monitor import StoreMonitor
from app.store.queries.overview import (
    RECENT,
    SHOWN_CHARACTERS,
    START,
    latest_answers,
    numbers_of,
)


def latest(store, tmp_path, *groups):
    """What is shown of an update of these groups."""
    monitor = StoreMonitor(store, enter(store, tmp_path))
    monitor.run_started(info(tmp_path))
    monitor.trajectories(1, [group(n, answers) for n, answers in enumerate(groups)])
    monitor.metrics(1, "trained", values(1))
    monitor.run_finished(outcome(1))
    with store.read() as session:
        return latest_answers(session, monitor.run_id)


def test_the_best_and_the_worst_of_the_group_that_differs_most(store, tmp_path):
    found = latest(
        store,
        tmp_path,
        [("all", 0.5), ("alike", 0.5)],
        [("so so", 0.5), ("right", 1.0), ("wrong", 0.0), ("wrong too", 0.0)],
    )
    assert (found.update, found.groups, found.group) == (1, 2, 1)
    assert [(one.text, one.reward) for one in found.shown] == [("right", 1.0), ("wrong too", 0.0)]
    assert {one.prompt for one in found.shown} == {"Question number 1?"}
    assert not any(one.is_cut for one in found.shown)


def test_where_each_prompt_has_one_answer_they_are_those_of_the_whole_update(store, tmp_path):
    found = latest(store, tmp_path, [("worst", 0.1)], [("best", 0.8)], [("middling", 0.3)])
    assert found.group is None
    assert [(one.text, one.group) for one in found.shown] == [("best", 1), ("worst", 0)]


def test_a_single_answer_is_shown_once(store, tmp_path):
    assert [one.text for one in latest(store, tmp_path, [("alone", 0.5)]).shown] == ["alone"]


def test_a_long_answer_is_cut(store, tmp_path):
    found = latest(store, tmp_path, [("x" * 5000, 1.0), ("short", 0.0)])
    assert [(len(one.text), one.is_cut) for one in found.shown] == [
        (SHOWN_CHARACTERS, True),
        (5, False),
    ]


def test_a_run_without_answers_has_no_latest(store, tmp_path):
    run_id = enter(store, tmp_path)
    with store.read() as session:
        assert latest_answers(session, run_id) is None


def test_the_numbers_that_a_page_speaks_of(store, tmp_path):
    monitor = whole_run(store, tmp_path, 50)
    with store.read() as session:
        numbers = numbers_of(session, monitor.run_id, "reward/mean", "eval/mean_reward")
    assert numbers.last == values(50)
    assert numbers.start == [(update, update / 100) for update in range(1, START + 1)]
    assert numbers.main == [(update, update / 100) for update in range(51 - RECENT, 51)]
    assert numbers.evaluations == []
