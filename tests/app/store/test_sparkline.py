from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.store.sparkline import POINTS, Sparkline


def test_a_short_run_has_a_point_for_each_update():
    line = Sparkline()
    for update, value in ((1, 0.5), (2, None), (4, math.nan), (5, 1.0)):
        line.add(update, value)
    assert line.points() == [0.5, None, None, None, 1.0]


@pytest.mark.parametrize("updates", [60, 61, 120, 121, 1000, 100_000])
def test_a_long_one_has_all_of_the_run_in_few_points(updates):
    line = Sparkline()
    for update in range(1, updates + 1):
        line.add(update, float(update))
    points = line.points()
    assert POINTS / 2 <= len(points) <= POINTS
    assert points == sorted(points)
    assert points[0] == pytest.approx((1 + line.width) / 2)
    assert points[-1] > updates - line.width


@given(st.lists(st.floats(0, 1), min_size=1, max_size=500))
def test_the_points_are_means_of_what_was_added(values):
    line = Sparkline()
    for update, value in enumerate(values, 1):
        line.add(update, value)
    parts = [values[i : i + line.width] for i in range(0, len(values), line.width)]
    assert line.points() == pytest.approx([sum(p) / len(p) for p in parts], rel=1e-5, abs=1e-12)
