from __future__ import annotations

import pytest

from app.routes.tiles import Tile, tiles
from app.store.models import Run
from app.store.queries.overview import Numbers
from trainer.health.resolve import guide_for


def made(algorithm="grpo", last=None, params=None, main=(), evaluations=(), pace=None, start=None):
    """By name. ``start`` are the first values, where they are not those of ``main``."""
    run = Run(algorithm=algorithm, params=params or {}, seconds_per_update=pace)
    values = list(enumerate(main, start=1))
    first = values[:20] if start is None else list(start)
    numbers = Numbers(last or {}, first, values, list(evaluations))
    guide = {entry.name: entry for entry in guide_for(algorithm, run.params)}
    return {tile.name: tile for tile in tiles(run, numbers, guide)}


@pytest.mark.parametrize("algorithm", ["grpo", "ppo", "sft"])
def test_there_are_six_with_and_without_numbers(algorithm):
    assert len(made(algorithm)) == 6
    assert {tile.value for tile in made(algorithm).values()} == {"—"}


def test_the_reward_says_how_far_it_has_come():
    tile = made(last={"reward/mean": 0.71}, main=(0.33, 0.71))["reward / mean"]
    assert (tile.value, tile.note, tile.better) == ("0.710", "since update 1", True)
    assert tile.change == pytest.approx(0.38)
    worse = made(last={"reward/mean": 0.2}, main=(0.33, 0.2))["reward / mean"]
    assert worse.better is False
    only = made(last={"reward/mean": 0.2}, main=(0.2,))["reward / mean"]
    assert (only.note, only.change) == ("of the first update", None)


def test_a_loss_is_better_when_it_is_lower():
    tile = made("sft", last={"sft/loss": 1.0}, main=(2.0, 1.0))["loss"]
    assert (tile.change, tile.better) == (-1.0, True)
    held_out = made("sft", evaluations=[(0, 3.0), (8, 2.5)])["held-out loss"]
    assert held_out == Tile("held-out loss", "2.50", "since update 0", -0.5, better=True)


def test_groups_are_counted_where_they_are_whole():
    name = "batch/zero_std_group_fraction"
    params = {"grpo": {"prompts_per_update": 4}}
    tile = made(last={name: 0.25}, params=params)["groups without signal"]
    assert (tile.value, tile.note) == ("1 of 4", "25 % · fine below 50 %")
    resampled = made(last={name: 0.1}, params=params)["groups without signal"]
    assert resampled.value == "10 %"


def test_a_clip_fraction_of_0_is_fine_while_the_run_learns():
    rising, level = [n / 40 for n in range(40)], [0.5] * 40
    zero, some = {"policy/clip_fraction": 0.0}, {"policy/clip_fraction": 0.1}
    fine = "healthy: 0.02 to 0.35; 0 is fine while the run learns"
    assert made(last=zero, main=rising)["clip fraction"].note == fine
    for last, main in ((zero, level), (some, rising), ({}, rising)):
        assert made(last=last, main=main)["clip fraction"].note == "healthy: 0.02 to 0.35"


def test_tokens_are_whole():
    tile = made("sft", last={"sft/tokens": 1218.0})["tokens learnt in an update"]
    assert tile.value == "1,218"


def test_ppo_shows_its_critic_and_without_one_the_spread():
    critic = made("ppo", last={"critic/explained_variance": 0.4})["foreseen by the critic"]
    assert critic.note == "healthy: above 0.2 after 20 updates"
    assert made("ppo", last={"reward/std": 0.3})["reward spread"].value == "0.300"


@pytest.mark.parametrize(
    ("gap", "note"),
    [
        (0.001, "sampling is on-policy"),
        (0.05, "larger than the healthy 0.02"),
        (0.2, "sampling is off-policy"),
    ],
)
def test_a_gap_says_what_it_means(gap, note):
    assert made(last={"sampler/logprob_gap_mean": gap})["sampler gap"].note == note


def test_the_speed_says_where_the_time_goes():
    last = {"timing/update_seconds": 10.0, "timing/train_seconds": 6.1}
    assert made(last=last, pace=9.6)["speed"] == Tile("speed", "9.6 s", "an update · 61 % training")
    assert made(last=last)["speed"].value == "10 s"
    assert made(pace=0.25)["speed"].value == "250 ms"


def test_a_curve_whose_first_values_are_not_finite_has_a_tile_all_the_same():
    tile = made("grpo", last={"reward/mean": 0.5}, main=(0.4, 0.5), start=())["reward / mean"]
    assert (tile.value, tile.change) == ("0.500", None)
