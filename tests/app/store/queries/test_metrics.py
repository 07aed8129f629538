from __future__ import annotations

import itertools
import math

import pytest
from sqlalchemy import select
from told_runs import enter, info, outcome, tell, values, whole_run

from app.store.models import Metric, MetricName, Segment, Update
from app.store.monitor import StoreMonitor
from app.store.queries.metrics import (
    curves_of,
    last_values,
    metric_rows,
    newest_rows,
    recent_values,
)


@pytest.fixture
def lay(store, tmp_path):
    """Writes a run with these values of ``reward/mean`` for the updates from 1 on; its id."""

    def write(numbers):
        run_id = enter(store, tmp_path)
        with store.write() as session:
            segment = Segment(run_id=run_id, number=1, started_at=0.0)
            known = select(MetricName).where(MetricName.name == "reward/mean")
            name = session.scalar(known) or MetricName(name="reward/mean")
            session.add_all([segment, name])
            session.flush()
            of = {"run_id": run_id, "segment_id": segment.id}
            session.add_all(
                Metric(update=update, value=value, name_id=name.id, **of)
                for update, value in enumerate(numbers, start=1)
            )
            session.add_all(
                Update(
                    update=update, kind="train", status="trained", at=1000.0 + update,
                    steps=2 * update, tokens=100 * update, answers=0, trained=0, rewards=[], **of,
                )
                for update in range(1, len(numbers) + 1)
            )  # fmt: skip
        return run_id

    return write


def curve(store, run_id, name="reward/mean", **wanted):
    with store.read() as session:
        return curves_of(session, run_id, [name], **wanted).curves[0]


def test_a_short_curve_is_whole_and_knows_the_other_axes(store, lay):
    found = curve(store, lay([0.5, None, 0.25]))
    assert found.updates == [1, 2, 3]
    assert found.values == [0.5, None, 0.25]
    assert found.means == found.values
    assert found.steps == [2, 4, 6]
    assert found.tokens == [100, 200, 300]
    assert found.times == [1001.0, 1002.0, 1003.0]
    assert (found.total, found.nonfinite, found.thinned) == (3, 1, False)


def test_a_long_curve_keeps_its_extremes_its_gaps_and_its_end(store, lay):
    numbers = [math.sin(update / 50) for update in range(1000)]
    numbers[333], numbers[334], numbers[777] = 9.0, -9.0, None
    found = curve(store, lay(numbers), points=100)
    assert len(found.updates) <= 101
    assert found.thinned
    assert found.total == 1000
    kept = dict(zip(found.updates, found.values, strict=True))
    assert kept[334] == 9.0
    assert kept[335] == -9.0
    assert kept[778] is None
    assert found.nonfinite == 1
    assert found.updates[0] == 1
    assert found.updates[-1] == 1000
    assert found.updates == sorted(set(found.updates))


def test_means_are_those_of_the_buckets(store, lay):
    found = curve(store, lay([1.0, 3.0] * 200), points=40)
    assert set(found.values) == {1.0, 3.0}
    assert set(found.means) == {2.0, None}
    assert found.means.count(2.0) == 40 // 4, "one for each bucket"
    assert found.means[-1] == 2.0


def test_a_bucket_without_a_finite_number_has_no_mean(store, lay):
    found = curve(store, lay([None] * 400), points=40)
    assert set(found.values) == {None}
    assert set(found.means) == {None}


def test_a_part_is_shown_in_full(store, lay):
    run_id = lay([float(update) for update in range(1, 1001)])
    found = curve(store, run_id, first=500, last=520, points=100)
    assert found.updates == list(range(500, 521))
    assert not found.thinned


def test_a_cursor_brings_what_came_after_it(store, tmp_path):
    monitor = whole_run(store, tmp_path, 4, end=False)
    other = whole_run(store, tmp_path, 2)
    with store.read() as session:
        before = curves_of(session, monitor.run_id, ["reward/mean", "reward/max"])
    again = StoreMonitor(store, monitor.run_id)
    again.run_started(info(tmp_path, resumed_from_update=4))
    tell(again, 5, reward__max=math.nan)
    again.settle()
    names = ["reward/mean", "reward/max", "no/such"]
    with store.read() as session:
        later = curves_of(session, monitor.run_id, names, after=before.last_id)
        assert [c.updates for c in later.curves] == [[5], [5], []]
        assert later.curves[0].values == [0.05]
        assert later.curves[1].values == [None]
        assert later.last_id > before.last_id
        assert later.segment > before.segment, "what was seen before may be superseded"
        nothing = curves_of(session, monitor.run_id, names, after=later.last_id)
        assert [c.updates for c in nothing.curves] == [[], [], []]
        of_other = curves_of(session, other.run_id, ["reward/mean"], after=0)
        assert of_other.curves[0].updates == [1, 2]
    again.run_finished(outcome(5))


def test_what_a_later_segment_superseded_is_not_shown_twice(store, tmp_path):
    run_id = whole_run(store, tmp_path, 6, end=False).run_id
    again = StoreMonitor(store, run_id)
    again.run_started(info(tmp_path, resumed_from_update=3))
    tell(again, 4, reward__mean=0.9)
    again.run_finished(outcome(4))
    found = curve(store, run_id)
    assert found.updates == [1, 2, 3, 4]
    assert found.values == [0.01, 0.02, 0.03, 0.9]
    assert curve(store, run_id, after=0).updates == [1, 2, 3, 4]
    with store.read() as session:
        last = {one.name: one for one in last_values(session, run_id)}
        assert (last["reward/mean"].update, last["reward/mean"].value) == (4, 0.9)
        assert recent_values(session, run_id, "reward/mean", 2) == [(3, 0.03), (4, 0.9)]


def test_a_measure_of_an_evaluation_does_not_bend_the_curve_of_the_updates(store, tmp_path):
    monitor = StoreMonitor(store, enter(store, tmp_path))
    monitor.run_started(info(tmp_path))
    measured = {"eval/mean_reward": 0.4, "timing/update_seconds": 99.0}
    monitor.evaluation(0, [], measured)
    tell(monitor, 1)
    monitor.evaluation(1, [], measured)
    monitor.run_finished(outcome(1))
    assert curve(store, monitor.run_id, "timing/update_seconds").values == [1.5]
    assert curve(store, monitor.run_id, "eval/mean_reward").updates == [0, 1]


def test_the_newest_value_of_each_metric(store, tmp_path):
    run_id = whole_run(store, tmp_path, 3).run_id
    whole_run(store, tmp_path, 5)
    with store.read() as session:
        last = last_values(session, run_id)
    assert [one.name for one in last] == sorted(values(1))
    assert {one.update for one in last} == {3}
    assert {one.name: one.value for one in last} == values(3)


def test_first_and_last_values(store, lay):
    run_id = lay([0.1, 0.2, None, 0.4])
    with store.read() as session:
        assert recent_values(session, run_id, "reward/mean", 2) == [(3, None), (4, 0.4)]
        first = recent_values(session, run_id, "reward/mean", 2, oldest=True)
        assert first == [(1, 0.1), (2, 0.2)]
        assert recent_values(session, run_id, "no/such", 2) == []


def test_rows_for_a_table_begin_with_the_newest(store, lay):
    run_id = lay([0.1, None])
    with store.read() as session:
        rows = newest_rows(session, run_id, "reward/mean", 10)
    assert [(row.update, row.value, row.steps, row.tokens) for row in rows] == [
        (2, None, 4, 200),
        (1, 0.1, 2, 100),
    ]


def test_every_row_comes_piece_by_piece(store, lay):
    run_id = lay([float(update) for update in range(1, 26)])
    pieces = list(metric_rows(store, run_id, ["reward/mean", "no/such"], size=10))
    assert [len(piece) for piece in pieces] == [10, 10, 5]
    rows = list(itertools.chain.from_iterable(pieces))
    assert [(row.update, row.value, row.at) for row in rows] == [
        (update, float(update), 1000.0 + update) for update in range(1, 26)
    ]


def test_nothing_is_held_while_rows_are_taken_slowly(store, lay):
    run_id = lay([float(update) for update in range(1, 26)])
    pieces = metric_rows(store, run_id, ["reward/mean"], size=10)
    assert next(pieces)
    assert store.engine.pool.checkedout() == 0


def test_a_cursor_is_that_of_the_run(store, lay):
    """Rows of other runs may have greater ids and yet be kept earlier."""
    run_id = lay([0.1, 0.2])
    lay([0.5] * 20)
    with store.read() as session:
        last_id = curves_of(session, run_id, ["reward/mean"]).last_id
        own = session.scalars(select(Metric.id).where(Metric.run_id == run_id)).all()
    assert last_id == max(own)


def test_tokens_that_are_learnt_are_counted_where_none_is_sampled(store, tmp_path):
    monitor = StoreMonitor(store, enter(store, tmp_path, algorithm="sft"))
    monitor.run_started(info(tmp_path, algorithm="sft", params={}))
    for update in (1, 2, 3):
        told = {"sft/loss": 1.0 / update, "sft/tokens": 100.0}
        monitor.metrics(update, "trained", told)
    monitor.run_finished(outcome(3))
    with store.read() as session:
        (curve,) = curves_of(session, monitor.run_id, ["sft/loss"]).curves
    assert curve.tokens == [100, 200, 300]
