from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from app import text


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[2Jgone", "␛[2Jgone"),
        ("\x1b]0;title\x07", "␛]0;title␇"),
        ("over\rwritten\b", "over␍written␈"),
        ("\x9b31m", "\\x9b31m"),
        ("\x7f", "␡"),
        ("abc\u202efdp", "abc\\u202efdp"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("a\nb\u2028c", "a↵b↵c"),
        ("tab\there", "tab here"),
        ("half \ud83d", "half \ufffd"),
        ("plain 数 é 👩‍👩‍👧", "plain 数 é 👩‍👩‍👧"),
    ],
)
def test_nothing_that_a_terminal_obeys_gets_through(hostile, shown):
    assert text.neutralise(hostile) == shown


def test_lines_stay_lines_where_that_is_asked_for():
    assert text.neutralise("a\r\nb\x1b", keep_newlines=True) == "a\nb␛"


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(8, 60))
def test_a_shortened_text_fits_and_holds_no_control_character(any_text, cells):
    line = text.one_line(any_text, cells)
    assert cell_len(line) <= cells
    assert all(ord(char) >= 0x20 and not 0x7F <= ord(char) < 0xA0 for char in line)


def test_only_what_does_not_fit_is_cut():
    assert text.one_line("exactly", 7) == "exactly"
    assert text.one_line("exactly!", 7) == "exactl…"
    assert text.one_line("数学の答え", 6) == "数学…"
    assert text.one_line(" " * 500 + "7", 20) == "…"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0.41249, "0.412"),
        (-0.3, "-0.300"),
        (12.345, "12.35"),
        (123.45, "123.5"),
        (4321.9, "4322"),
        (1.5e9, "1.5e+09"),
        (math.nan, "NaN"),
        (-math.inf, "-inf"),
    ],
)
def test_score(value, written):
    assert text.score(value) == written


def test_signed():
    assert [text.signed(value) for value in (0.03, -0.03, 0.0)] == ["+0.030", "-0.030", "+0.000"]


@pytest.mark.parametrize(
    ("fraction", "written"),
    [(0.0, "0%"), (0.0625, "6.2%"), (0.25, "25%"), (1.0, "100%"), (0.0996, "10%")],
)
def test_percent(fraction, written):
    assert text.percent(fraction) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [(0.00214, "0.0021"), (2.0, "2.0"), (12.4, "12"), (9.97, "10"), (1.2e-7, "1.2e-07")],
)
def test_short(value, written):
    assert text.short(value) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0.4567, "0.46"),
        (-0.001, "0.00"),
        (-12.3, "-12.30"),
        (-1234.0, "-1.2e+03"),
        (math.nan, "NaN"),
    ],
)
def test_hundredths(value, written):
    assert text.hundredths(value) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [(0.1, "0.10s"), (9.84, "9.8s"), (161.2, "161s")],
)
def test_seconds(value, written):
    assert text.seconds(value) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [(42.4, "42 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")],
)
def test_duration(value, written):
    assert text.duration(value) == written


def test_size():
    assert [text.size(count) for count in (12, 2048, 3 << 20, 5 << 30)] == [
        "12 bytes",
        "2.0 KiB",
        "3.0 MiB",
        "5.0 GiB",
    ]


def test_prose_is_broken_at_words_and_paths_and_commands_stay_whole():
    path = "/a/very/long/path/to/an/adapter.gguf"
    assert (
        text.folded(f"the adapter is in {path} by now", 20) == f"the adapter is in\n{path}\nby now"
    )
    assert text.folded("  llama-cli -m base.gguf --lora a.gguf", 20).count("\n") == 0
    assert text.folded("数数数 数数数", 8) == "数数数\n数数数"
    assert text.folded("/seed N       draw", 80) == "/seed N       draw"
