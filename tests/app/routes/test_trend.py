from __future__ import annotations

import pytest

from app.routes.trend import has_learnt, trend_of, trend_since_the_start
from app.store.queries.overview import Numbers
from trainer.health.headline import headline_of


def numbers(main, start=None):
    values = list(enumerate(main, start=1))
    return Numbers({}, values[:20] if start is None else list(enumerate(start)), values, [])


def noisy(level, count=20):
    """Around ``level``, by a hundredth up and down."""
    return [level + (0.01 if n % 2 else -0.01) for n in range(count)]


def test_a_trend_is_sure_where_it_is_more_than_noise():
    rising = trend_of(list(enumerate(noisy(0.5) + noisy(0.6))))
    assert rising.sure
    assert rising.change == pytest.approx(0.1)
    assert not trend_of(list(enumerate(noisy(0.5, 40)))).sure
    assert trend_of([(1, 0.5)] * 9) is None


def test_means_that_are_far_apart_are_not_level_however_noisy_they_are():
    wild = [1.0, 0.0] * 9
    falling = trend_of(list(enumerate([*wild, 1.0, 1.0, *wild, 0.0, 0.0])))
    assert not falling.sure
    assert not falling.is_level
    assert trend_of(list(enumerate(noisy(0.5, 40)))).is_level
    assert trend_of([(1, 0.0)] * 20).is_level


def test_the_first_values_and_the_last_have_none_in_common():
    assert trend_since_the_start(numbers(noisy(0.5, 9))) is None
    assert trend_since_the_start(numbers(noisy(0.5, 10))).over == 5
    assert trend_since_the_start(numbers(noisy(0.5, 40))).over == 20


@pytest.mark.parametrize(
    ("main", "start", "learnt"),
    [
        (noisy(0.5) + noisy(0.6), None, True),
        (noisy(0.8, 40), noisy(0.3), True),
        (noisy(0.5, 40), None, False),
        (noisy(0.6) + noisy(0.5), None, False),
        ([0.1, 0.9], None, False),
    ],
)
def test_a_run_has_learnt_where_its_reward_is_surely_higher(main, start, learnt):
    assert has_learnt(numbers(main, start), headline_of("grpo")) is learnt
