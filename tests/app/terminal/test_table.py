from __future__ import annotations

import pytest

from app.terminal.history import UpdateRow
from app.terminal.table import fit


@pytest.fixture
def row(values) -> UpdateRow:
    return UpdateRow(7, 24, "trained", values, 0.031)


def test_at_80_columns_everything_has_a_place(row):
    columns = fit(row, 80)
    assert (
        " ".join(columns.header().plain.split())
        == "update reward change dead grad clip KL len cut time gen/rew/sco/trn"
    )
    assert (
        " ".join(columns.row(row).plain.split())
        == "7/24 0.412 +0.031 25% 0.83 6.2% 0.0021 11.2 0% 9.8s 53/1/13/33%"
    )


def test_with_room_the_titles_are_whole_words_and_the_times_seconds(row):
    header, line = fit(row, 160).header().plain, fit(row, 160).row(row).plain
    assert "dead groups  grad norm  clipped" in header
    assert header.endswith("= generate + reward + score + train +  swap")
    assert "  9.8s  =      5.2 +   0.10 +   1.3 +   3.2 +  0.08" in line


@pytest.mark.parametrize("width", [46, 60, 79, 80, 99, 100, 120, 140, 200])
def test_header_and_rows_are_aligned_and_fit(row, width):
    columns = fit(row, width)
    assert len(columns.header()) == len(columns.row(row)) <= width


def test_a_narrow_terminal_keeps_reward_dead_groups_clip_kl_and_time(row):
    assert " ".join(fit(row, 50).header().plain.split()) == "update reward change dead clip KL time"


def test_the_kl_of_whole_answers_has_a_column_where_it_is_measured(row, values):
    measured = UpdateRow(7, 24, "trained", values | {"policy/kl_per_answer": 0.4}, None)
    assert "KL/ans" in fit(measured, 100).header().plain
    assert "KL/ans" not in fit(row, 100).header().plain


def test_shares_are_of_the_whole_update_so_that_time_outside_the_stages_shows(row, values):
    slow = values | {"timing/swap_seconds": 9.88, "timing/update_seconds": 19.6}
    assert fit(row, 80).row(UpdateRow(8, 24, "trained", slow, None)).plain.endswith("27/1/7/16%")


def test_a_skipped_update_says_so_and_leaves_gaps(row, values):
    left = {key: value for key, value in values.items() if not key.startswith(("policy", "opt"))}
    skipped = UpdateRow(8, 24, "skipped", left, 0.1)
    assert fit(row, 80).row(skipped).plain.split()[:7] == (
        ["8/24", "0.412", "skipped", "25%", "-", "-", "-"]
    )


def test_a_table_that_begins_with_a_skipped_update_has_room_for_the_later_stages(row, values):
    early = {
        key: value for key, value in values.items() if "score" not in key and "train" not in key
    }
    columns = fit(UpdateRow(1, 24, "skipped", early, None), 80)
    assert columns.header().plain.endswith("gen/rew/sco/trn")
    assert columns.row(row).plain.endswith("53/1/13/33%")


def test_what_is_out_of_its_band_or_not_finite_is_coloured(row, values):
    odd = values | {"policy/clip_fraction": 0.7, "policy/approx_kl": float("nan")}
    line = fit(row, 80).row(UpdateRow(8, 24, "trained", odd, -0.1))
    styles = {line.plain[span.start : span.end].strip(): span.style for span in line.spans}
    assert styles["70%"] == "yellow"
    assert styles["NaN"] == "bold red"
    assert styles["-0.100"] == "red"
