from __future__ import annotations

import pytest

from trainer.algorithms.schedules import AdaptiveKl, KlSchedule, learning_rate_factor


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


@pytest.mark.parametrize(
    ("measured", "factor"),
    [
        (6.0, 1.0),  # on target
        (6.6, 1.01),  # 10% above: 1 + 0.1 · 32 / 320
        (5.4, 0.99),
        (60.0, 1.02),  # the error is cut at 0.2
        (0.0, 0.98),
        (-1.0, 0.98),  # samples may give a negative estimate
        (float("inf"), 1.02),
        (float("nan"), 1.0),
        (None, 1.0),
    ],
)
def test_adaptive_kl_by_hand(measured, factor):
    control = AdaptiveKl(target=6.0, horizon=320)
    assert control.next(0.05, measured, 32) == pytest.approx(0.05 * factor)


def test_adaptive_kl_moves_by_answers_over_horizon():
    control = AdaptiveKl(target=6.0, horizon=320)
    assert control.next(1.0, 60.0, 160) == pytest.approx(1.1)  # 1 + 0.2 · 160 / 320
    assert control.next(1.0, 60.0, 640) == pytest.approx(1.4)  # two horizons at once


def test_adaptive_kl_never_turns_negative():
    # 1 − 0.2 · 64 / 8 = −0.6 and 1 + 0.2 · 64 / 8 = 2.6: both are held at a factor of 2
    control = AdaptiveKl(target=6.0, horizon=8)
    assert control.next(0.1, 0.0, 64) == pytest.approx(0.05)
    assert control.next(0.1, 60.0, 64) == pytest.approx(0.2)


def test_adaptive_kl_holds_a_policy_that_answers_to_it():
    """A policy whose KL is 1 / β, say, ends at its target from both sides."""
    control = AdaptiveKl(target=4.0, horizon=100)
    for coefficient in (10.0, 0.01):
        for _ in range(500):
            coefficient = control.next(coefficient, 1.0 / coefficient, 20)
        assert coefficient == pytest.approx(0.25, rel=1e-3)
