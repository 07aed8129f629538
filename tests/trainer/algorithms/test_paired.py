"""The statistics of a comparison: numbers worked out here or printed in tables, and how often the
interval holds what it should."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trainer.algorithms.paired import mean_of, paired, sign_test, t_quantile, t_within


def test_a_comparison_worked_out_by_hand():
    """Differences 1, 2, 3, 0: mean 1.5; squared distances 0.25, 0.25, 2.25, 2.25 make 5, over n − 1
    = 3 a variance of 5/3; the standard error is √(5/3) / 2 = 0.645497; t for 3 degrees of freedom
    is 3.182446, so the interval reaches 2.054261 to either side."""
    change = paired([0.0, 1.0, 2.0, 4.0], [1.0, 3.0, 5.0, 4.0])
    assert (change.count, change.before, change.after, change.difference) == (4, 1.75, 3.25, 1.5)
    assert change.standard_error == pytest.approx(0.645497, abs=1e-6)
    assert change.low == pytest.approx(-0.554261, abs=1e-6)
    assert change.high == pytest.approx(3.554261, abs=1e-6)
    assert (change.better, change.worse, change.equal) == (3, 0, 1)
    assert change.sign_p == pytest.approx(0.25)
    assert not change.is_shown


def test_how_hard_a_question_is_falls_out():
    """The rewards differ by 100 between questions, and by 1 ± 0.1 within each."""
    before = [0.0, 100.0, 200.0, 300.0]
    change = paired(before, [b + d for b, d in zip(before, (0.9, 1.1, 0.9, 1.1), strict=True)])
    assert change.low == pytest.approx(1 - 3.182446 * 0.1 / math.sqrt(3), abs=1e-6)
    assert change.is_shown


def test_where_lower_is_better_the_counts_turn_round_and_the_difference_keeps_its_sign():
    change = paired([2.0, 2.0, 2.0], [1.0, 1.5, 3.0], lower_is_better=True)
    assert (change.better, change.worse) == (2, 1)
    assert change.difference == pytest.approx(-0.5 / 3)


@pytest.mark.parametrize("after", [[1.0], [1.0, 1.0, 1.0], [2.0, 2.0, 2.0]], ids=str)
def test_without_spread_there_is_no_interval(after):
    change = paired([1.0] * len(after), after)
    assert (change.standard_error, change.low, change.high) == (None, None, None)
    assert not change.is_shown


def test_nothing_or_unequal_numbers_are_refused():
    with pytest.raises(ValueError, match="no question"):
        paired([], [])
    with pytest.raises(ValueError):
        paired([1.0], [1.0, 2.0])


def test_the_mean_does_not_depend_on_the_order():
    values = [0.1, 0.7, 1e16, -1e16, 0.3]
    assert mean_of(values) == mean_of(values[::-1]) == pytest.approx(0.22)


@pytest.mark.parametrize(
    ("up", "down", "p"),
    [
        (0, 0, 1.0),
        (1, 0, 1.0),
        (5, 0, 2 / 32),
        (8, 1, 2 * (1 + 9) / 512),
        (1, 8, 2 * (1 + 9) / 512),
        (3, 3, 1.0),
    ],
)
def test_the_sign_test_counts_coins(up, down, p):
    assert sign_test(up, down) == pytest.approx(p, rel=1e-12)


def test_the_sign_test_of_many_coins():
    assert 0 < sign_test(1100, 900) < 1e-5
    assert sign_test(50_000, 50_000) == 1.0


# Two-sided 5% points as tables of Student's distribution print them.
TABLE = {
    1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 10: 2.228, 15: 2.131,
    29: 2.045, 30: 2.042, 60: 2.000, 120: 1.980, 10_001: 1.960,
}  # fmt: skip


@pytest.mark.parametrize("freedom", TABLE)
def test_the_quantiles_are_those_of_the_tables(freedom):
    assert t_quantile(0.95, freedom) == pytest.approx(TABLE[freedom], abs=5.1e-4)


@pytest.mark.parametrize("freedom", [1, 2, 7, 30])
def test_the_quantile_is_where_the_integral_of_the_density_reaches_the_confidence(freedom):
    """In the angle θ, t = √ν tan θ, the density is proportional to cos θ to the power ν − 1."""
    angle = math.atan(t_quantile(0.9, freedom) / math.sqrt(freedom))
    points = np.linspace(0, math.pi / 2, 200_001)
    density = np.cos(points) ** (freedom - 1)
    inside = np.trapezoid(np.where(points <= angle, density, 0), points)
    assert inside / np.trapezoid(density, points) == pytest.approx(0.9, abs=2e-5)
    assert t_within(angle, freedom) == pytest.approx(0.9, abs=1e-12)


def covered(draw, truth, rounds):
    """How often the interval of a drawn comparison holds the difference that is true."""
    found = 0
    for _ in range(rounds):
        before, after = draw()
        change = paired(before, after)
        # All differences alike: no interval is claimed, and so none is wrong.
        found += change.low is None or change.low <= truth <= change.high
    return found / rounds


def test_the_interval_holds_the_truth_nineteen_times_in_twenty_if_differences_are_normal():
    rng = np.random.default_rng(1)

    def draw(count=12):
        hard = rng.normal(0, 5, count)
        return hard.tolist(), (hard + 0.3 + rng.normal(0, 1, count)).tolist()

    # The share of 2000 rounds has a standard error of 0.005.
    assert covered(draw, 0.3, 2000) == pytest.approx(0.95, abs=0.015)


@pytest.mark.parametrize("count", [30, 64])
def test_it_does_so_too_for_rewards_of_zero_and_one(count):
    """Four answers to each prompt, each right or wrong; prompts of very different difficulty, of
    which the second policy solves more. So differences are lumps, and skewed."""
    rng = np.random.default_rng(2)

    def draw():
        easy = rng.beta(0.4, 1.0, count)
        sides = (easy, easy + 0.3 * (1 - easy))
        return [(rng.binomial(4, side) / 4).tolist() for side in sides]

    truth = 0.3 * (1 - 0.4 / 1.4)
    assert covered(draw, truth, 2000) == pytest.approx(0.95, abs=0.015)
