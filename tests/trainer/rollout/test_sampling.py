from __future__ import annotations

import math

import numpy as np
import pytest

from trainer.errors import TrainingError
from trainer.rollout.answers import SamplingSettings
from trainer.rollout.sampling import HEAD, draw


def seeds_of(count, first=0):
    return np.arange(first, first + count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def draw_many(row, count, *, temperature=1.0, top_p=1.0, first=0):
    """``count`` answers' first token from the same logits."""
    rows = np.broadcast_to(np.asarray(row, np.float32), (count, len(row)))
    steps = np.zeros(count, np.int64)
    return draw(rows, seeds_of(count, first), steps, temperature=temperature, top_p=top_p)


def log_softmax(row, temperature=1.0):
    scaled = np.asarray(row, np.float64) / temperature
    scaled = scaled - scaled.max()
    return scaled - math.log(np.exp(scaled).sum())


def chi_square(tokens, probabilities):
    expected = probabilities * len(tokens)
    observed = np.bincount(tokens, minlength=len(probabilities))
    return float((((observed - expected) ** 2) / expected).sum())


def chi_square_limit(cells):
    """Exceeded by chance once in a thousand (Wilson and Hilferty's approximation)."""
    freedom = cells - 1
    return freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.5])
def test_frequencies_match_the_softmax_at_the_temperature(temperature):
    row = np.random.default_rng(0).standard_normal(40) * 1.5
    tokens = draw_many(row, 20_000, temperature=temperature).tokens
    expected = np.exp(log_softmax(row, temperature))
    assert chi_square(tokens, expected) < chi_square_limit(40)
    others = np.exp(log_softmax(row, temperature * 1.3))
    assert chi_square(tokens, others) > chi_square_limit(40)


def test_the_tail_is_drawn_as_often_as_its_mass_and_evenly_within():
    # One token, and 4,000 of e^-(HEAD + 1) each: 15% of the mass lies outside the head.
    row = np.full(4001, -(HEAD + 1.0))
    row[17] = 0.0
    mass = 4000 * math.exp(-(HEAD + 1.0))
    tail = mass / (1 + mass)
    tokens = draw_many(row, 4000).tokens
    drawn = tokens[tokens != 17]
    sigma = math.sqrt(4000 * tail * (1 - tail))
    assert abs(len(drawn) - 4000 * tail) < 3.3 * sigma
    tenths = np.bincount(drawn * 10 // 4001, minlength=10)
    assert chi_square(drawn * 10 // 4001, np.full(10, 0.1)) < chi_square_limit(10), tenths


def test_unequal_tokens_of_the_tail_are_drawn_by_their_weight():
    row = np.concatenate([[0.0], np.full(8000, -(HEAD + 1)), np.full(8000, -(HEAD + 1) + 0.9)])
    tokens = draw_many(row, 3000).tokens
    light, heavy = np.sum((tokens > 0) & (tokens <= 8000)), np.sum(tokens > 8000)
    share = math.exp(0.9) / (1 + math.exp(0.9))
    assert abs(heavy / (light + heavy) - share) < 3.3 * math.sqrt(share / (light + heavy))


def test_a_draw_does_not_depend_on_the_other_rows():
    rng = np.random.default_rng(1)
    rows = (rng.standard_normal((12, 500)) * 3).astype(np.float32)
    seeds, steps = seeds_of(12), rng.integers(0, 90, 12)
    together = draw(rows, seeds, steps, temperature=0.9)
    order = rng.permutation(12)
    shuffled = draw(rows[order], seeds[order], steps[order], temperature=0.9)
    np.testing.assert_array_equal(shuffled.tokens, together.tokens[order])
    np.testing.assert_array_equal(shuffled.logprobs, together.logprobs[order])
    for i in range(12):
        one = draw(rows[i : i + 1], seeds[i : i + 1], steps[i : i + 1], temperature=0.9)
        assert one.tokens[0] == together.tokens[i]


def test_each_step_and_each_seed_has_its_own_noise():
    rows = np.zeros((64, 1000), np.float32)
    one_seed = draw(rows, np.zeros(64, np.uint64), np.arange(64), temperature=1.0).tokens
    one_step = draw(rows, seeds_of(64), np.zeros(64, np.int64), temperature=1.0).tokens
    assert len(set(one_seed.tolist())) > 55
    assert len(set(one_step.tolist())) > 55


def test_rounding_noise_in_the_logits_hardly_ever_changes_a_draw():
    rng = np.random.default_rng(2)
    rows = (rng.standard_normal((400, 8000)) * 2).astype(np.float32)
    noisy = rows + rng.uniform(-1e-5, 1e-5, rows.shape).astype(np.float32)
    seeds, steps = seeds_of(400), np.zeros(400, np.int64)
    before = draw(rows, seeds, steps, temperature=1.0).tokens
    after = draw(noisy, seeds, steps, temperature=1.0).tokens
    assert np.count_nonzero(before != after) == 0


@pytest.mark.parametrize("temperature", [1.0, 0.25, 2.0])
def test_logprobs_are_those_of_the_whole_vocabulary(temperature):
    rng = np.random.default_rng(3)
    rows = (rng.standard_normal((20, 5000)) * 4 + 30).astype(np.float32)
    draws = draw(rows, seeds_of(20), np.zeros(20, np.int64), temperature=temperature)
    expected = [log_softmax(rows[i], temperature)[t] for i, t in enumerate(draws.tokens)]
    np.testing.assert_allclose(draws.logprobs, expected, atol=2e-6, rtol=1e-6)
    assert draws.logprobs.dtype == np.float32


def test_logits_of_any_size_are_safe():
    rows = np.array([[1e30, -1e30, 0.0], [-np.inf, 2.0, -np.inf]], np.float32)
    draws = draw(rows, seeds_of(2), np.zeros(2, np.int64), temperature=0.1)
    assert draws.tokens.tolist() == [0, 1]
    assert draws.logprobs.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_finite_stop_the_run(bad):
    rows = np.zeros((2, 5), np.float32)
    rows[1, 3] = bad
    with pytest.raises(TrainingError, match="row 1 are not finite"):
        draw(rows, seeds_of(2), np.zeros(2, np.int64), temperature=1.0)


# Probabilities 0.5, 0.3, 0.1, 0.1; equal ones are kept from the lowest id up.
BY_HAND = np.log([0.1, 0.5, 0.1, 0.3])


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(0.4, {1}), (0.5, {1}), (0.51, {1, 3}), (0.8, {1, 3}), (0.81, {0, 1, 3}), (1.0, {0, 1, 2, 3})],
)
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p, kept):
    assert set(draw_many(BY_HAND, 400, top_p=top_p).tokens.tolist()) == kept


def test_within_top_p_tokens_keep_their_odds_and_logprobs_their_whole():
    draws = draw_many(BY_HAND, 8000, top_p=0.8)
    share = np.mean(draws.tokens == 1)
    assert share == pytest.approx(0.5 / 0.8, abs=3.3 * math.sqrt(0.25 / 8000))
    np.testing.assert_allclose(draws.logprobs, BY_HAND[draws.tokens], atol=1e-6)


def test_top_p_reaches_into_the_tail_where_the_head_is_too_light():
    row = np.concatenate([[0.0], np.full(30_000, -(HEAD + 1))])
    tokens = draw_many(row, 60, top_p=0.9).tokens
    mass = 1 + 30_000 * math.exp(-(HEAD + 1))
    last_kept = (0.9 * mass - 1) / math.exp(-(HEAD + 1))
    assert 0 < tokens.max() <= last_kept + 1
    assert tokens.max() > last_kept / 2


@pytest.mark.parametrize("spread", [0.001, 1.0, 30.0])
def test_greedy_settings_draw_the_most_probable_token_whatever_the_seed(spread):
    """Also where 100,000 tokens are all but equal; of two that are, the first."""
    row = np.random.default_rng(1).normal(0, spread, 100_000).astype(np.float32)
    row[[500, 70_000]] = row.max() + np.float32(spread)
    greedy = SamplingSettings.greedy(8)
    drawn = draw_many(row, 5, temperature=greedy.temperature, top_p=greedy.top_p)
    assert drawn.tokens.tolist() == [500] * 5
    assert drawn.logprobs.tolist() == [0.0] * 5


@pytest.mark.parametrize(
    "options", [{"temperature": -1.0}, {"temperature": math.nan}, {"top_p": 0.0}]
)
def test_settings_outside_their_range_are_refused(options):
    with pytest.raises(ValueError, match="must be"):
        draw_many([0.0, 1.0], 1, **options)
