import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.prefix import shared_prefix


@pytest.mark.parametrize(
    ("prompts", "common"),
    [
        ([[1, 2, 3]], 3),
        ([[1, 2, 3], [1, 2, 3]], 3),
        ([[1, 2, 3], [1, 2, 4]], 2),
        ([[1, 2], [1, 2, 4]], 2),
        ([[2, 1], [1, 1]], 0),
        ([[1, 2], []], 0),
        # neighbours in this order have three tokens alike; the first and the third only one
        ([[1, 2, 3, 4], [1, 2, 3, 5], [1, 9, 3, 5], [1, 9, 3, 6]], 1),
        ([(1, 2, 3), [1, 2, 5]], 2),
        ([[9, 200], [9, 1000]], 1),  # numbers are compared, not how they are written
    ],
)
def test_prefixes_by_hand(prompts, common):
    assert shared_prefix(prompts) == common
    assert shared_prefix(prompts[::-1]) == common


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=1, max_size=6))
def test_all_begin_with_it_and_with_nothing_longer(prompts):
    common = shared_prefix(prompts)
    assert len({tuple(prompt[:common]) for prompt in prompts}) == 1
    longer = [tuple(prompt[: common + 1]) for prompt in prompts]
    assert len(set(longer)) > 1 or min(map(len, prompts)) == common


def test_of_nothing_there_is_no_prefix():
    with pytest.raises(ValueError, match="empty"):
        shared_prefix([])
