from __future__ import annotations

import pytest

from trainer.data import evenly_spread


@pytest.mark.parametrize(
    ("count", "most", "places"),
    [
        (4, None, [0, 1, 2, 3]),
        (4, 4, [0, 1, 2, 3]),
        (4, 9, [0, 1, 2, 3]),
        (10, 1, [0]),
        (10, 3, [0, 3, 6]),
        (10, 4, [0, 2, 5, 7]),
        (3, 2, [0, 1]),
    ],
)
def test_even_places_in_a_file(count, most, places):
    assert evenly_spread(count, most) == places
