"""The stored numbers of PPO's answers, each definition worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from small_runs import answer, episode

from trainer.algorithms import metrics
from trainer.algorithms.episodes import Estimate


def valued(advantages, *, values=None, returns=None, signal=True):
    """Answers whose tokens have these advantages."""
    made = []
    for index, own in enumerate(advantages):
        one = episode(float(index), answer(*range(len(own))), index=index)
        zeros = [0.0] * len(own)
        parts = values[index] if values else zeros, returns[index] if returns else zeros, own
        one.estimate = Estimate(*map(torch.tensor, parts))
        one.advantages = one.estimate.advantages.mean().reshape(1)
        one.signal = signal
        made.append(one)
    return made


def test_an_answer_of_many_advantages_counts_with_their_mean():
    # means 1 and -2
    assert metrics.batch_metrics(valued([[3.0, -1.0], [-2.0]])) == {
        "batch/trained_fraction": 1.0,
        "batch/advantage_abs_mean": 1.5,
    }


def test_a_batch_without_signal_is_not_trained_on_at_all():
    assert metrics.batch_metrics(valued([[0.0, 0.0], [0.0]], signal=False)) == {
        "batch/trained_fraction": 0.0,
        "batch/advantage_abs_mean": 0.0,
    }


def test_groups_of_one_answer_have_no_metrics_of_groups():
    made = valued([[1.0], [2.0]])
    values = metrics.reward_metrics(made) | metrics.batch_metrics(made)
    assert "reward/group_std" not in values
    assert "batch/zero_std_group_fraction" not in values
    assert (values["reward/mean"], values["reward/std"]) == (0.5, 0.5)


def test_where_every_prompt_has_one_answer_a_duplicate_repeats_another_of_the_update():
    made = [
        episode(0.0, answer(*ids), index=i) for i, ids in enumerate([(7, 8), (9,), (7, 8), (7,)])
    ]
    assert metrics.completion_metrics(made)["completions/duplicate_fraction"] == pytest.approx(
        1 / 4
    )


def test_kl_per_answer_is_the_mean_over_the_answers_of_an_update():
    made = valued([[0.0, 0.0], [0.0]])
    made[0].old, made[0].reference = [torch.tensor([-1.0, -2.0])], [torch.tensor([-1.5, -2.0])]
    made[1].old, made[1].reference = [torch.tensor([-3.0])], [torch.tensor([-2.0])]
    expected = ((math.exp(-0.5) - 0.5) + (math.e - 2.0)) / 2
    assert metrics.reference_metrics(made)["policy/kl_per_answer"] == pytest.approx(expected)


# -- critic/* ------------------------------------------------------------------------------------


@pytest.fixture
def critic_values():
    """Values 1, 2 | 0 against returns 2, 4 | 0, of which the errors are 1, 2 | 0. Three states of
    width 8 are kept, in F16."""
    made = valued([[0.0, 0.0], [0.0]], values=[[1.0, 2.0], [0.0]], returns=[[2.0, 4.0], [0.0]])
    for own in made:
        own.features = torch.zeros(len(own.tokens), 8, dtype=torch.float16)
    return metrics.critic_metrics(made)


def test_value_loss_is_half_the_mean_square_error_of_the_tokens(critic_values):
    assert critic_values["policy/value_loss"] == pytest.approx(0.5 * 5 / 3)


def test_value_mean_is_over_tokens(critic_values):
    assert critic_values["critic/value_mean"] == pytest.approx(1.0)


def test_explained_variance_is_of_the_tokens_returns(critic_values):
    # errors 1 2 0 have variance 1, returns 2 4 0 variance 4
    assert critic_values["critic/explained_variance"] == pytest.approx(0.75)


def test_feature_mib_is_what_the_kept_states_take(critic_values):
    assert critic_values["critic/feature_mib"] == 3 * 8 * 2 / 2**20


def test_returns_that_are_all_equal_leave_nothing_to_explain():
    made = valued([[0.0], [0.0]], values=[[1.0], [2.0]], returns=[[3.0], [3.0]])
    values = metrics.critic_metrics(made)
    assert "critic/explained_variance" not in values
    assert values["policy/value_loss"] == pytest.approx(0.5 * (4 + 1) / 2)
    assert values["critic/feature_mib"] == 0.0
