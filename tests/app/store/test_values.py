from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.store.values import number, plain, text


@given(st.text(st.characters()))
def test_any_text_becomes_one_that_has_a_form_in_utf_8(value):
    made = text(value)
    assert "\0" not in made
    made.encode("utf-8")
    if "\0" not in value and not any(0xD800 <= ord(c) < 0xE000 for c in value):
        assert made == value


def test_two_halves_of_a_sign_become_the_sign():
    assert text("\ud83d\ude00 \ude00") == "😀 \ufffd"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan")])
def test_what_is_not_finite_is_none(value):
    assert number(value) is None
    assert plain({"a": [value, 1.5]}) == {"a": [None, 1.5]}


def test_values_of_other_types_take_the_form_of_json():
    value = {"path": Path("a/b"), "n": np.int64(3), "yes": np.bool_(True), 4: ("x", None)}
    assert plain(value) == {"path": "a/b", "n": 3, "yes": True, "4": ["x", None]}
    json.dumps(plain(value), allow_nan=False)
    with pytest.raises(TypeError, match="bytes"):
        plain(b"raw")
