"""A long curve as the few points that a screen can show, with its extremes."""

from __future__ import annotations

import numpy as np

from app.store.queries.series import Floats, Integers, Series

LEAST_POINTS = 16
_ROWS_OF_A_BUCKET = 4
"""The lowest, the highest and the last value, and one that is not finite."""


def thinned(rows: Series, points: int) -> tuple[Series, Floats]:
    """At most about ``points`` of ``rows``, with the means of the buckets that they stand for: of
    each, in its last row, and NaN in the others. A bucket keeps its first lowest and highest value,
    its last one and its first that is not finite. Few rows stay as they are, each its own mean."""
    count = len(rows.updates)
    if count <= max(points, LEAST_POINTS):
        return rows, rows.values
    buckets = max(points, LEAST_POINTS) // _ROWS_OF_A_BUCKET
    low, high = int(rows.updates[0]), int(rows.updates[-1])
    bucket = (rows.updates - low) * buckets // (high - low + 1)
    starts = np.flatnonzero(np.concatenate(([True], bucket[1:] != bucket[:-1])))
    ends = np.append(starts[1:], count)
    finite = np.isfinite(rows.values)
    sums = np.add.reduceat(np.where(finite, rows.values, 0.0), starts)
    counts = np.add.reduceat(finite, starts, dtype=np.int64)
    means = np.divide(sums, counts, out=np.full(len(starts), np.nan), where=counts > 0)
    kept = np.zeros(count, dtype=bool)
    kept[0] = True
    kept[ends - 1] = True
    for extreme in (np.where(finite, rows.values, np.inf), np.where(finite, -rows.values, np.inf)):
        kept[_first_least(extreme, starts, ends)] = True
    kept[_first_least(finite.astype(np.float64), starts, ends)] = True
    places = np.flatnonzero(kept)
    at_the_ends = np.full(count, np.nan)
    at_the_ends[ends - 1] = means
    return Series(rows.updates[places], rows.columns[places]), at_the_ends[places]


def _first_least(values: Floats, starts: Integers, ends: Integers) -> Integers:
    """The place of each bucket's least value, the first one of several."""
    least = np.repeat(np.minimum.reduceat(values, starts), ends - starts)
    places = np.where(values == least, np.arange(len(values)), len(values))
    found: Integers = np.minimum.reduceat(places, starts)
    return found
