from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from app.store.queries.series import series_of
from app.store.queries.thinning import LEAST_POINTS, thinned

NUMBERS = st.one_of(st.none(), st.floats(-1e6, 1e6, allow_nan=False))


@given(st.dictionaries(st.integers(0, 5000), NUMBERS, max_size=300), st.integers(16, 80))
def test_extremes_gaps_and_both_ends_stay(rows, points):
    whole = series_of(rows)
    some, means = thinned(whole, points)
    known = [value for value in rows.values() if value is not None]
    kept = [rows[int(update)] for update in some.updates]
    assert len(some.updates) <= max(points, LEAST_POINTS) + 1
    assert len(means) == len(some.updates)
    if rows:
        assert {min(rows), max(rows)} <= set(some.updates.tolist())
        assert (None in rows.values()) == (None in kept)
    if known:
        assert max(known) in kept
        assert min(known) in kept
        assert (
            min(known) <= np.nanmean(means) <= max(known)
            or np.isclose(np.nanmean(means), (min(known), max(known))).any()
        )


def test_few_rows_are_their_own_means():
    whole = series_of({1: 0.5, 2: None, 9: 0.25})
    some, means = thinned(whole, 16)
    assert some is whole
    assert means.tolist()[::2] == [0.5, 0.25]
