from itertools import combinations, pairwise
from math import exp, log, sqrt

import pytest

from trainer.judge.scores import Comparison, bradley_terry, kendall_tau, rescale, win_rates


def round_robin(count, points=lambda one, other: 1.0):
    return [Comparison(i, j, points(i, j)) for i, j in combinations(range(count), 2)]


def test_a_win_rate_is_the_share_of_the_comparisons_that_were_won():
    # 0 beats 1 and ties with 2; 1 beats 2 three quarters; 3 is not compared.
    comparisons = [Comparison(0, 1, 1.0), Comparison(0, 2, 0.5), Comparison(1, 2, 0.75)]
    assert win_rates(comparisons, 4) == [1.5 / 2, 0.75 / 2, 0.75 / 2, 0.5]


def test_the_strength_of_two_answers_solves_the_equation_by_hand():
    # θ and −θ with 1 − σ(2θ) = λθ at λ = 0.1. One iteration to the next: θ = 10 / (1 + e^(2θ)).
    low, high = 0.0, 10.0
    for _ in range(200):
        theta = (low + high) / 2
        low, high = (theta, high) if 10 / (1 + exp(2 * theta)) > theta else (low, theta)
    expected = 1 / (1 + exp(-theta))
    assert bradley_terry([Comparison(0, 1, 1.0)], 2) == pytest.approx([expected, 1 - expected])
    assert 0.7 < expected < 0.8


def test_equal_strengths_score_one_half():
    assert bradley_terry(round_robin(5, lambda i, j: 0.5), 5) == pytest.approx([0.5] * 5)
    assert bradley_terry([], 3) == [0.5] * 3


def test_strengths_without_noise_are_recovered():
    """Many comparisons outweigh the prior, and the share of wins is the model's own."""
    strengths = [-1.0, -0.5, 0.0, 0.5, 1.0]
    comparisons = 500 * round_robin(5, lambda i, j: 1 / (1 + exp(strengths[j] - strengths[i])))
    found = [log(p / (1 - p)) for p in bradley_terry(comparisons, 5)]
    assert found == pytest.approx(strengths, abs=1e-3)


def test_winning_everything_stays_below_one_and_keeps_the_order():
    found = bradley_terry(round_robin(256), 256)
    assert all(a > b for a, b in pairwise(found))
    assert 0 < found[-1] < 0.01
    assert 0.99 < found[0] < 1


def test_few_comparisons_tell_bradley_terry_whom_an_answer_beat():
    """1 and 2 both won one of two, but 1 lost to the best and 2 to the worst."""
    comparisons = [
        Comparison(0, 1, 1.0),  # the best beats 1
        Comparison(0, 3, 1.0),
        Comparison(1, 4, 1.0),
        Comparison(2, 4, 1.0),
        Comparison(3, 2, 1.0),  # 3, which lost to the best too, beats 2
    ]
    rates, strengths = win_rates(comparisons, 5), bradley_terry(comparisons, 5)
    assert rates[1] == rates[2] == 0.5
    assert strengths[1] > strengths[2]


def test_an_answer_without_comparison_is_average():
    assert bradley_terry([Comparison(0, 1, 1.0)], 3)[2] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("score", "anchor", "target", "expected"),
    [
        (0.2, 0.4, 0.6, 0.3),  # half of the way to the anchor stays half of the way
        (0.7, 0.4, 0.6, 0.8),  # half of the way from it to 1 too
        (0.4, 0.4, 0.6, 0.6),
        (0.0, 0.4, 0.6, 0.0),
        (1.0, 0.4, 0.6, 1.0),
        (0.0, 0.0, 0.5, 0.5),  # an anchor at an end is where it is put
        (0.5, 0.0, 0.5, 0.75),
        (1.0, 1.0, 0.5, 0.5),
        (0.5, 1.0, 0.5, 0.25),
        (0.3, 0.3, 0.3, 0.3),
    ],
)
def test_a_score_keeps_its_place_between_the_ends_and_the_anchor(score, anchor, target, expected):
    assert rescale(score, anchor, target) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("expected", "found", "tau"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 40], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 3], [1, 3, 2], 1 / 3),  # two pairs agree and one does not
        ([1, 1, 2], [1, 2, 3], 2 / sqrt(2 * 3)),  # one of three pairs is tied on the left
        ([1, 2], [5, 5], None),
        ([], [], None),
    ],
)
def test_kendalls_tau(expected, found, tau):
    assert kendall_tau(expected, found) == (tau if tau is None else pytest.approx(tau))
