from __future__ import annotations

import dataclasses

import pytest

from app.terminal.history import UpdateRow
from app.terminal.table import fit


@pytest.fixture
def row(values) -> UpdateRow:
    return UpdateRow(7, 24, "trained", values, 0.031)


def test_at_80_columns_everything_has_a_place(row, info):
    columns = fit(info, 80)
    assert (
        " ".join(columns.header().plain.split())
        == "update reward change dead grad clip KL len cut time gen/rew/sco/trn"
    )
    assert (
        " ".join(columns.row(row).plain.split())
        == "7/24 0.412 +0.031 25% 0.83 6.2% 0.0021 11.2 0% 9.8s 53/1/13/33%"
    )


def test_with_room_the_titles_are_whole_words_and_the_times_seconds(row, info):
    header, line = fit(info, 160).header().plain, fit(info, 160).row(row).plain
    assert "dead groups  grad norm  clipped" in header
    assert header.endswith("= generate + reward + score + train +  swap")
    assert "  9.8s  =      5.2 +   0.10 +   1.3 +   3.2 +  0.08" in line


@pytest.mark.parametrize("width", [47, 60, 79, 80, 99, 100, 120, 140, 200])
def test_header_and_rows_are_aligned_and_fit(row, info, ppo_info, width):
    for run in (info, ppo_info):
        columns = fit(run, width)
        assert len(columns.header()) == len(columns.row(row)) <= width


def test_a_narrow_terminal_keeps_reward_dead_groups_clip_kl_and_time(info):
    assert (
        " ".join(fit(info, 50).header().plain.split()) == "update reward change dead clip KL time"
    )


def test_ppo_has_its_critic_in_place_of_dead_groups(ppo_info, values):
    row = UpdateRow(7, 24, "trained", values | {"critic/explained_variance": -0.123}, 0.031)
    columns = fit(ppo_info, 80)
    assert (
        " ".join(columns.header().plain.split())
        == "update reward change crit grad clip KL len cut time gen/rew/sco/trn"
    )
    assert (
        " ".join(columns.row(row).plain.split())
        == "7/24 0.412 +0.031 -0.12 0.83 6.2% 0.0021 11.2 0% 9.8s 53/1/13/33%"
    )
    assert "critic  grad norm" in fit(ppo_info, 160).header().plain


def test_an_update_without_an_explained_variance_leaves_a_gap(ppo_info, row):
    assert fit(ppo_info, 80).row(row).plain.split()[3:5] == ["-", "0.83"]


def test_without_a_critic_there_is_no_column_for_it(ppo_info):
    off = ppo_info.params["ppo"] | {"critic": {"enabled": False}}
    header = fit(dataclasses.replace(ppo_info, params={"ppo": off}), 80).header().plain
    assert header.split()[:4] == ["update", "reward", "change", "grad"]


@pytest.mark.parametrize(
    ("algorithm", "keys", "shown"),
    [
        ("grpo", {"kl_coefficient": 0.0}, False),
        ("grpo", {"kl_coefficient": 0.05}, True),
        ("ppo", {"kl_coefficient": 0.0, "kl_anchor": "reference"}, False),
        ("ppo", {"kl_coefficient": 0.05, "kl_anchor": "rollout"}, False),
        ("ppo", {"kl_coefficient": 0.05, "kl_anchor": "reference"}, True),
    ],
)
def test_the_kl_of_whole_answers_has_a_column_where_a_penalty_measures_it(
    info, algorithm, keys, shown
):
    run = dataclasses.replace(info, algorithm=algorithm, params={algorithm: keys})
    assert ("KL/ans" in fit(run, 100).header().plain) == shown


def test_a_judge_has_a_column_of_time_where_there_is_one(info):
    judged = dataclasses.replace(info, params={"grpo": {"judge": {"model": "m"}}})
    assert "gen/rew/jud/sco/trn" in fit(judged, 100).header().plain
    assert "gen/rew/sco/trn" in fit(info, 100).header().plain


def test_shares_are_of_the_whole_update_so_that_time_outside_the_stages_shows(info, values):
    slow = values | {"timing/swap_seconds": 9.88, "timing/update_seconds": 19.6}
    assert fit(info, 80).row(UpdateRow(8, 24, "trained", slow, None)).plain.endswith("27/1/7/16%")


def test_a_skipped_update_says_so_and_leaves_gaps(info, values):
    left = {key: value for key, value in values.items() if not key.startswith(("policy", "opt"))}
    skipped = UpdateRow(8, 24, "skipped", left, 0.1)
    assert fit(info, 80).row(skipped).plain.split()[:7] == (
        ["8/24", "0.412", "skipped", "25%", "-", "-", "-"]
    )


def test_what_is_out_of_its_band_or_not_finite_is_coloured(ppo_info, values):
    odd = values | {
        "policy/clip_fraction": 0.7,
        "policy/approx_kl": float("nan"),
        "critic/explained_variance": -0.2,
    }
    line = fit(ppo_info, 80).row(UpdateRow(8, 24, "trained", odd, -0.1))
    styles = {line.plain[span.start : span.end].strip(): span.style for span in line.spans}
    assert styles["70%"] == "yellow"
    assert styles["-0.20"] == "yellow"
    assert styles["NaN"] == "bold red"
    assert styles["-0.100"] == "red"


def test_sft_has_its_loss_and_no_stages(sft_info):
    values = {"sft/loss": 0.25, "sft/epoch": 1.5, "sft/tokens": 120.0, "timing/update_seconds": 2.0}
    row = UpdateRow(2, 24, "trained", values, -0.125)
    columns = fit(sft_info, 80)
    assert columns.header().plain.split() == [
        *("update", "loss", "change", "epoch", "tokens"),
        *("learning", "rate", "grad", "norm", "time"),
    ]
    shown = columns.row(row)
    assert shown.plain.split() == [
        *("2/24", "0.250", "-0.125", "1.50", "120", "-", "-", "2.0s"),
    ]
    [style] = [s.style for s in shown.spans if "-0.125" in shown.plain[s.start : s.end]]
    assert style == "green", "a loss that falls is good"
