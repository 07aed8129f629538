from __future__ import annotations

import dataclasses
import math

import pytest

from app.terminal.history import RunHistory


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def history(info, clock) -> RunHistory:
    return RunHistory(info, clock)


def test_the_change_of_a_held_out_reward_is_against_the_evaluation_before(history):
    first = history.evaluated(0, 16, {"eval/mean_reward": 0.625})
    second = history.evaluated(4, 16, {"eval/mean_reward": 0.9375})
    assert (first.update, first.count, first.figure, first.change) == (0, 16, 0.625, None)
    assert second.change == 0.3125


def test_a_run_that_goes_on_is_as_far_as_it_was(info, clock):
    history = RunHistory(dataclasses.replace(info, updates=8, resumed_from_update=6), clock)
    assert history.fraction_done() == 0.75


def test_the_evaluation_before_the_first_update_is_none_of_its_time(info, clock):
    """Loading 10 s, evaluation 100 s, then updates of 20 s: 22 of them are left after two."""
    history = RunHistory(info, clock)
    clock.now += 10
    history.progress("prepare", 3, 3)
    history.progress("evaluate", 0, 16)
    assert history.stage == "evaluate"
    clock.now += 100
    history.evaluated(0, 16, {"eval/mean_reward": 0.5})
    assert history.stage == "generate"
    for update in (1, 2):
        clock.now += 20
        history.add(update, "trained", {})
    assert history.seconds_left() == pytest.approx(22 * 20)


def test_the_change_is_against_the_update_before(history):
    rows = [history.add(n + 1, "trained", {"reward/mean": r}) for n, r in enumerate((0.2, 0.5))]
    assert rows[0].change is None
    assert rows[1].change == pytest.approx(0.3)


def test_time_left_comes_from_the_last_updates_and_leaves_out_the_loading(history, clock):
    history.progress("prepare", 1, 3)
    clock.now += 60
    history.progress("prepare", 3, 3)
    assert history.stage == "generate"
    assert history.seconds_left() is None
    for update in range(1, 5):
        clock.now += 5
        history.progress("generate", 1, 32)
        clock.now += 5
        history.add(update, "trained", {})
    assert history.seconds_left() == pytest.approx(200)
    clock.now += 4
    assert history.seconds_left() == pytest.approx(196)
    clock.now += 1000
    assert history.seconds_left() == pytest.approx(190), "an update that drags on is not over"


def test_the_share_done_grows_within_an_update_as_its_stages_took_before(history, values):
    history.add(1, "trained", values)
    history.progress("generate", 16, 32)
    assert history.fraction_done() == pytest.approx((1 + 0.5 * 5.2 / 9.8) / 24)
    history.progress("train", 0, 8)
    assert history.fraction_done() == pytest.approx((1 + (5.2 + 0.1 + 1.3) / 9.8) / 24)


def test_first_and_last_are_five_updates_or_half_of_a_short_run(history):
    assert history.first_and_last() is None
    for update, reward in enumerate((0.0, 0.2, math.nan, 0.4), start=1):
        history.add(update, "trained", {"reward/mean": reward})
    assert history.first_and_last() == (0.0, 0.4, 1)
    for update in range(5, 17):
        history.add(update, "trained", {"reward/mean": 1.0})
    first, last, count = history.first_and_last()
    assert (first, last, count) == (pytest.approx(2.6 / 5), 1.0, 5)


def test_an_update_without_a_reward_leaves_no_mark(history):
    row = history.add(1, "skipped", {})
    assert row.change is None
    assert history.figures == []
    assert history.finished_updates == 1


# -- SFT -----------------------------------------------------------------------------------------


def test_a_run_of_sft_is_followed_by_its_loss(sft_info, clock):
    history = RunHistory(sft_info, clock)
    rows = [history.add(n, "trained", {"sft/loss": v}) for n, v in enumerate((2.0, 1.5), start=1)]
    assert (history.followed, history.figures) == ("sft/loss", [2.0, 1.5])
    assert rows[1].change == -0.5
    assert history.stage == "train"


def test_an_update_of_sft_is_all_training(sft_info, clock):
    history = RunHistory(sft_info, clock)
    history.progress("prepare", 3, 3)
    assert history.stage == "train"
    assert history.fraction_done() == 0.0
    history.progress("train", 1, 2)
    assert history.fraction_done() == pytest.approx(0.5 / 24)


def test_a_held_out_loss_is_of_texts(sft_info, clock):
    history = RunHistory(sft_info, clock)
    first = history.evaluated(0, 0, {"eval/loss": 2.0, "eval/texts": 20.0})
    second = history.evaluated(4, 0, {"eval/loss": 1.5, "eval/texts": 20.0})
    assert (first.count, first.figure, first.of) == (20, 2.0, "loss")
    assert second.change == -0.5
