from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.routes.reading.text import HEAD, WHOLE, Run, runs_of, shown


def test_text_is_kept_as_it_was_written():
    text = "  two  spaces\n\n\ttab <b>&amp;</b> {{ 7 * 7 }} é 数 👩‍👩‍👧"
    assert runs_of(text) == (Run(text),)
    assert runs_of("") == (Run(""),)


@pytest.mark.parametrize(
    ("char", "sign", "name"),
    [
        ("\x1b", "U+001B", "U+001B ESCAPE"),
        ("\r", "\\r", "U+000D CARRIAGE RETURN"),
        ("\x7f", "U+007F", "U+007F a control character"),
        ("\u202e", "U+202E", "U+202E RIGHT-TO-LEFT OVERRIDE"),
        ("\u2066", "U+2066", "U+2066 LEFT-TO-RIGHT ISOLATE"),
        ("\u200b", "U+200B", "U+200B ZERO WIDTH SPACE"),
        ("\ufeff", "U+FEFF", "U+FEFF ZERO WIDTH NO-BREAK SPACE"),
        ("\u2028", "U+2028", "U+2028 LINE SEPARATOR"),
        ("\U000e0041", "U+E0041", "U+E0041 TAG LATIN CAPITAL LETTER A"),
    ],
)
def test_what_shows_nothing_gets_a_sign(char, sign, name):
    assert runs_of(f"a{char}b") == (Run("a"), Run(sign, name), Run("b"))


@given(st.text())
def test_nothing_else_is_changed(text):
    written = [run.text for run in runs_of(text) if not run.name]
    position = 0
    for part in written:
        position = text.index(part, position) + len(part)
    signs = sum(bool(run.name) for run in runs_of(text))
    assert sum(map(len, written)) + signs == len(text)


def words(runs) -> str:
    return "".join(run.text for run in runs)


def test_a_long_text_is_folded_at_a_good_place():
    text = "word " * 400
    parts = shown(text, len(text))
    assert words(parts.head).endswith("word ")
    assert len(words(parts.head)) <= HEAD
    assert words(parts.head) + words(parts.rest) == text
    assert (parts.rest_chars, parts.left, parts.lost) == (len(words(parts.rest)), 0, 0)


def test_a_text_without_a_good_place_is_folded_all_the_same():
    parts = shown("x" * 5000, 5000)
    assert words(parts.head) == "x" * HEAD


def test_of_an_endless_text_only_the_beginning_is_on_the_page_until_it_is_asked_for():
    text = "x" * 64_000
    parts = shown(text, 64_000)
    assert len(words(parts.head) + words(parts.rest)) == WHOLE
    assert parts.left == 64_000 - WHOLE
    whole = shown(text, 64_000, whole=True)
    assert words(whole.head) + words(whole.rest) == text
    assert whole.left == 0


def test_a_text_that_was_cut_before_it_was_stored_says_so():
    assert shown("abc", 10).lost == 7
