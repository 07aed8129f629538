from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.routes.reading.differences import MOST_WORDS, differences


def marked(stretches) -> str:
    return "".join(
        f"[{words}]" if stretch.changed else words
        for stretch in stretches
        for words in ["".join(run.text for run in stretch.runs)]
    )


def both(first: str, second: str) -> tuple[str, str]:
    found = differences(first, second)
    return marked(found.first), marked(found.second)


@pytest.mark.parametrize(
    ("first", "second", "left", "right"),
    [
        ("18 + 7 equals 25.", "18 + 7 equals 27.", "18 + 7 equals [25].", "18 + 7 equals [27]."),
        ("the sum is 25", "the sum is 25", "the sum is 25", "the sum is 25"),
        ("25", "It is 25", "25", "[It is ]25"),
        ("a b c", "a c", "a [b ]c", "a c"),
        ("", "all new", "", "[all new]"),
        ("数学", "数字", "数[学]", "数[字]"),
    ],
)
def test_words_that_the_other_has_not_are_marked(first, second, left, right):
    assert both(first, second) == (left, right)


def test_the_share_of_equal_words_leaves_white_space_out():
    assert differences("a b c d", "a b x y").alike == 0.5
    assert differences("", "").alike == 1.0
    assert differences("a", "b").alike == 0.0


@given(st.text(max_size=80), st.text(max_size=80))
def test_no_word_is_lost_and_equal_texts_have_no_mark(first, second):
    found = differences(first, second)
    for stretches, text in ((found.first, first), (found.second, second)):
        plain = "".join(r.text for s in stretches for r in s.runs if not r.name)
        signs = sum(bool(r.name) for s in stretches for r in s.runs)
        assert len(plain) + signs == len(text)
    assert not any(stretch.changed for stretch in differences(first, first).first)


@pytest.mark.parametrize("words", [["the"], ["a", "b"], [str(n) for n in range(500)]])
def test_endless_texts_are_compared_in_a_moment(words):
    rng = random.Random(1)
    first = " ".join(rng.choices(words, k=30_000))
    second = " ".join(rng.choices(words, k=30_000))
    start = time.process_time()
    found = differences(first, second)
    assert time.process_time() - start < 3
    assert found.left == found.right == 2 * 30_000 - 1 - MOST_WORDS
    assert "".join(r.text for s in found.first for r in s.runs) == first
