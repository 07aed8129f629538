from __future__ import annotations

import pytest

from trainer.algorithms.schedules import KlSchedule, learning_rate_factor


def factors(total: int, warmup: int, scheduler: str) -> list[float]:
    return [learning_rate_factor(s, total, warmup, scheduler) for s in range(total + 1)]


def test_constant_after_a_warmup():
    assert factors(4, 1, "constant") == [0.5, 1.0, 1.0, 1.0, 1.0]


def test_linear_ends_at_zero():
    assert factors(4, 0, "linear") == [1.0, 0.75, 0.5, 0.25, 0.0]


def test_linear_starts_to_fall_after_the_warmup():
    assert factors(4, 2, "linear") == pytest.approx([1 / 3, 2 / 3, 1.0, 0.5, 0.0])


def test_cosine_passes_a_half_in_the_middle_and_ends_at_zero():
    assert factors(4, 0, "cosine") == pytest.approx([1.0, 0.853553, 0.5, 0.146447, 0.0], abs=1e-6)


def test_kl_coefficient_warms_up_then_follows_its_target():
    schedule = KlSchedule(0.3, warmup_updates=3, target=0.1)
    assert schedule.first() == pytest.approx(0.1)
    assert schedule.next(0.1, 1, 5.0) == pytest.approx(0.2)
    assert schedule.next(0.2, 2, 5.0) == pytest.approx(0.3)
    assert schedule.next(0.3, 3, 5.0) == pytest.approx(0.3)
    assert schedule.next(0.3, 4, 0.16) == pytest.approx(0.45)  # above 1.5 · 0.1
    assert schedule.next(0.3, 4, 0.06) == pytest.approx(0.2)  # below 0.1 / 1.5
    assert schedule.next(0.3, 4, 0.1) == pytest.approx(0.3)
    assert schedule.next(0.3, 4, None) == pytest.approx(0.3)


def test_kl_coefficient_stays_within_sixteen_times():
    schedule = KlSchedule(0.1, warmup_updates=0, target=0.1)
    high = low = 0.1
    for update in range(1, 20):
        high, low = schedule.next(high, update, 9.0), schedule.next(low, update, 0.0)
    assert (high, low) == pytest.approx((1.6, 0.1 / 16))
