"""One test for each stored number, its definition worked out by hand."""

from __future__ import annotations

import math
import time

import numpy as np
import psutil
import pytest
import torch
from small_runs import answer, group

from trainer.algorithms import metrics
from trainer.algorithms.objectives import PassStats
from trainer.algorithms.stopwatch import Stopwatch
from trainer.model.learner import PassCounts
from trainer.model.packing import pack

CPU = torch.device("cpu")


# -- reward/* ------------------------------------------------------------------------------------


@pytest.fixture
def reward_values(configured):
    """Rewards of the program: 0 and 1, then 3 and 5. The last answer fills its six tokens, and the
    overlong penalty takes 1 off: 0, 1, 3 and 4 are trained on."""
    config = configured(
        {"grpo.overlong_penalty.buffer_tokens": 2, "grpo.overlong_penalty.max_penalty": 1.0}
    )
    first = group(config, [0.0, 1.0], parts=[{"format": 1.0}, {"format": 0.0, "sum": 3.0}])
    full = answer(*range(6), finished=False)
    second = group(config, [3.0, 5.0], [answer(1), full], parts=[{"format": 0.5}, {}])
    return metrics.reward_metrics([first, second]) | metrics.group_metrics([first, second])


def test_reward_mean_is_of_the_rewards_trained_on(reward_values):
    assert reward_values["reward/mean"] == 2.0


def test_reward_min_and_max(reward_values):
    assert (reward_values["reward/min"], reward_values["reward/max"]) == (0.0, 4.0)


def test_reward_std_is_over_all_answers(reward_values):
    # squares of -2, -1, 1, 2 have mean 2.5
    assert reward_values["reward/std"] == pytest.approx(math.sqrt(2.5))


def test_reward_group_std_is_the_mean_of_the_groups_own(reward_values):
    assert reward_values["reward/group_std"] == pytest.approx(0.5)


def test_reward_verifiable_mean_is_the_programs_own(reward_values):
    assert reward_values["reward/verifiable_mean"] == 2.25


def test_reward_parts_are_averaged_over_the_answers_that_have_them(reward_values):
    assert reward_values["reward/parts/format"] == pytest.approx(0.5)
    assert reward_values["reward/parts/sum"] == 3.0


# -- completions/* -------------------------------------------------------------------------------


@pytest.fixture
def completion_values(configured):
    """Lengths 2, 2, 5 and 1, 2, 6; two are cut; within the first group one repeats another."""
    config = configured({"grpo.mask_truncated": True})
    first = [answer(7, 8), answer(7, 8), answer(1, 2, 3, 4, 5, finished=False)]
    second = [answer(9), answer(7, 8), answer(1, 2, 3, 4, 5, 6, finished=False)]
    groups = [group(config, [0.0, 1.0, 2.0], a) for a in (first, second)]
    return metrics.completion_metrics(groups)


def test_lengths_are_of_all_sampled_answers_masked_ones_too(completion_values):
    assert completion_values["completions/length_mean"] == 3.0
    assert completion_values["completions/length_min"] == 1.0
    assert completion_values["completions/length_max"] == 6.0


def test_truncation_fraction_counts_masked_answers(completion_values):
    assert completion_values["completions/truncation_fraction"] == pytest.approx(2 / 6)


def test_a_duplicate_repeats_an_answer_of_its_own_group(completion_values):
    # (7, 8) stands three times, once of which as the second of its group
    assert completion_values["completions/duplicate_fraction"] == pytest.approx(1 / 6)


# -- batch/* -------------------------------------------------------------------------------------


@pytest.fixture
def batch_values(configured):
    """A group of advantages -1, 0 and 1 with one answer masked, one of equal rewards, and one
    whose only difference is masked."""
    config = configured({"grpo.mask_truncated": True})
    cut = answer(1, 2, finished=False)
    plain = [answer(1), answer(2), answer(3)]
    groups = [
        group(config, [0.0, 9.0, 1.0, 2.0], [answer(1), cut, answer(2), answer(3)]),
        group(config, [4.0, 4.0, 4.0], plain),
        group(config, [5.0, 5.0, 0.0], [answer(1), answer(2), cut]),
    ]
    return metrics.batch_metrics(groups) | metrics.group_metrics(groups)


def test_zero_std_group_fraction_is_of_groups_whose_live_rewards_are_all_equal(batch_values):
    assert batch_values["batch/zero_std_group_fraction"] == pytest.approx(2 / 3)


def test_trained_fraction_is_of_all_sampled_answers(batch_values):
    assert batch_values["batch/trained_fraction"] == pytest.approx(3 / 10)


def test_advantage_abs_mean_is_over_the_answers_trained_on(batch_values):
    assert batch_values["batch/advantage_abs_mean"] == pytest.approx(2 / 3)


def test_a_batch_without_signal_has_no_advantage_and_no_division_by_zero(configured):
    values = metrics.batch_metrics([group(configured(), [1.0, 1.0])])
    assert values == {"batch/trained_fraction": 0.0, "batch/advantage_abs_mean": 0.0}


# -- policy/* and optimizer/* --------------------------------------------------------------------


def first_pass():
    """Two steps on 10 tokens in all, of which the clip removes 1 below and 2 above the band."""
    return PassStats(
        tokens=10,
        surrogate=-4.0,
        loss=0.5,
        kl=0.2,
        drift=0.1,
        entropy=30.0,
        clipped_low=1,
        clipped_high=2,
        ratio_max=1.5,
        norms=[1.0, 2.0],
    )


def last_pass():
    return PassStats(
        tokens=10,
        surrogate=-6.0,
        loss=-0.1,
        kl=0.4,
        drift=0.3,
        entropy=20.0,
        clipped_low=4,
        clipped_high=1,
        ratio_max=1.25,
        norms=[3.0, 4.0],
    )


@pytest.fixture
def policy_values():
    return metrics.policy_metrics([first_pass(), last_pass()], 0.05, 1e-4, 12)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("policy/surrogate_loss", -0.5, id="mean over the tokens of all passes"),
        pytest.param("policy/total_loss", 0.1, id="mean over steps: (0.5 - 0.1) / 4"),
        pytest.param("policy/approx_kl", 0.03, id="mean over the tokens of the last pass"),
        pytest.param("policy/kl", 0.03, id="mean over the tokens of all passes"),
        pytest.param("policy/kl_coefficient", 0.05, id="the one that was used"),
        pytest.param("policy/clip_fraction", 0.4, id="(0.3 + 0.5) / 2"),
        pytest.param("policy/clip_fraction_low", 0.25, id="(0.1 + 0.4) / 2"),
        pytest.param("policy/clip_fraction_high", 0.15, id="(0.2 + 0.1) / 2"),
        pytest.param("policy/entropy", 3.0, id="of the first pass"),
        pytest.param("policy/ratio_max", 1.5, id="largest of all passes"),
        pytest.param("optimizer/learning_rate", 1e-4, id="as given"),
        pytest.param("optimizer/grad_norm", 2.5, id="mean over steps"),
        pytest.param("optimizer/step", 12.0, id="as counted"),
    ],
)
def test_policy_and_optimizer_metrics(policy_values, name, value):
    assert policy_values[name] == pytest.approx(value)


def test_kl_is_stored_only_with_a_penalty():
    values = metrics.policy_metrics([first_pass()], 0.0, 1e-4, 1)
    assert "policy/kl" not in values
    assert "policy/kl_coefficient" not in values
    assert values["policy/approx_kl"] == pytest.approx(0.01)


def test_the_value_loss_of_a_shared_critic_is_the_mean_over_the_tokens_of_all_passes():
    one, two = first_pass(), last_pass()
    one.value_loss, two.value_loss = 6.0, 4.0
    values = metrics.policy_metrics([one, two], 0.0, 1e-4, 1)
    assert values["policy/value_loss"] == pytest.approx(10 / 20)


def test_without_a_shared_critic_the_passes_have_no_value_loss(policy_values):
    assert "policy/value_loss" not in policy_values


def scored(made, old, reference=None):
    made.old = [torch.tensor(o) for o in old]
    made.reference = [torch.tensor(r) for r in reference] if reference else None
    return made


def test_kl_per_answer_is_the_sum_over_an_answer_toward_the_initial_policy(configured):
    answers = [answer(1, 2), answer(3)]
    made = scored(
        group(configured(), [0.0, 1.0], answers), [[-1.0, -2.0], [-3.0]], [[-1.5, -2.0], [-2.0]]
    )
    # k3 of δ = -0.5, 0 and 1: e^δ - 1 - δ; two answers
    expected = ((math.exp(-0.5) - 0.5) + 0.0 + (math.e - 2.0)) / 2
    assert metrics.reference_metrics([made])["policy/kl_per_answer"] == pytest.approx(expected)


def test_kl_per_answer_is_absent_where_the_initial_policy_was_not_scored(configured):
    made = scored(group(configured(), [0.0, 1.0]), [[-1.0], [-1.0]])
    assert metrics.reference_metrics([made]) == {}


# -- sampler/* -----------------------------------------------------------------------------------


@pytest.fixture
def sampler_values(configured):
    """The trainer gives -1, -2 and -1; the sampler gave -1.5, -2 and -0.75."""
    config = configured({"training.importance_correction": "token", "training.importance_cap": 1.5})
    answers = [answer(1, 2, logprobs=[-1.5, -2.0]), answer(3, logprobs=[-0.75])]
    made = scored(group(config, [0.0, 1.0], answers), [[-1.0, -2.0], [-1.0]])
    return metrics.sampler_metrics([made], config.training)


def test_logprob_gap_mean_and_max(sampler_values):
    assert sampler_values["sampler/logprob_gap_mean"] == pytest.approx(0.25)
    assert sampler_values["sampler/logprob_gap_max"] == pytest.approx(0.5)


def test_sampler_kl_is_k3_of_the_sampler_toward_the_trainer(sampler_values):
    # δ = trainer - sampler = 0.5, 0, -0.25
    expected = (math.exp(0.5) - 1.5 + math.exp(-0.25) - 0.75) / 3
    assert sampler_values["sampler/kl"] == pytest.approx(expected)


def test_correction_capped_fraction_counts_weights_above_the_cap(sampler_values):
    # weights e^0.5 = 1.65, 1 and 0.78; the cap is 1.5
    assert sampler_values["sampler/correction_capped_fraction"] == pytest.approx(1 / 3)


def test_without_correction_nothing_is_capped(configured):
    config = configured()
    made = scored(group(config, [0.0, 1.0]), [[-1.0], [-1.0]])
    values = metrics.sampler_metrics([made], config.training)
    assert "sampler/correction_capped_fraction" not in values
    assert values["sampler/logprob_gap_max"] == 0.0


def test_an_update_without_training_has_no_sampler_gap(configured):
    config = configured()
    assert metrics.sampler_metrics([group(config, [1.0, 1.0])], config.training) == {}


# -- packing/* -----------------------------------------------------------------------------------


@pytest.fixture
def packing_values():
    """A prompt of 10: answers of 5, 1 and 3 tokens in one pass, and one of 2 alone in another."""
    counts = PassCounts()
    for lengths in ([5, 1, 3], [2]):
        counts.add(pack(range(10), [np.arange(n, dtype=np.int32) for n in lengths], CPU))
    return metrics.packing_metrics(counts)


def test_fanout_is_answers_a_pass(packing_values):
    assert (packing_values["packing/fanout"], packing_values["packing/passes"]) == (2.0, 2.0)


def test_shared_prefix_fraction_is_the_part_of_the_rows_saved(packing_values):
    # packed 10 + 4 + 0 + 2 and 10 + 1 rows; one by one 30 + 6 and 10 + 1
    assert packing_values["packing/shared_prefix_fraction"] == pytest.approx(1 - 27 / 47)


def test_padding_fraction_is_of_the_answers_rows(packing_values):
    # answers of 4 and 2 rows lie in a block of 2 x 4, one of 1 row in a block of 1
    assert packing_values["packing/padding_fraction"] == pytest.approx(1 - 7 / 9)


def test_answers_of_one_token_need_no_rows_and_no_padding():
    counts = PassCounts()
    counts.add(pack(range(4), [np.zeros(1, np.int32)] * 2, CPU))
    assert metrics.packing_metrics(counts)["packing/padding_fraction"] == 0.0


def test_no_pass_no_packing():
    assert metrics.packing_metrics(PassCounts()) == {}


# -- throughput/*, timing/* and system/* ---------------------------------------------------------


def test_throughput_counts_every_sampled_token_and_every_trained_one(configured):
    groups = [group(configured(), [0.0, 1.0], [answer(1, 2, 3), answer(4)])] * 2
    values = metrics.throughput_metrics(groups, {"generate": 2.0, "train": 4.0}, 100)
    assert values == {
        "throughput/generate_tokens_per_second": 4.0,
        "throughput/train_tokens_per_second": 25.0,
    }


def test_a_skipped_update_has_no_training_throughput(configured):
    values = metrics.throughput_metrics([group(configured(), [1.0, 1.0])], {"generate": 1.0}, 0)
    assert values == {"throughput/generate_tokens_per_second": 2.0}


def test_a_stage_entered_twice_adds_up_and_the_update_has_all_of_it():
    watch = Stopwatch()
    for stage in ("generate", "train", "generate"):
        with watch(stage):
            time.sleep(0.01)
    values = watch.metrics()
    assert values.keys() == {
        "timing/generate_seconds",
        "timing/train_seconds",
        "timing/update_seconds",
    }
    assert values["timing/generate_seconds"] >= 0.02
    assert values["timing/train_seconds"] >= 0.01
    stages = values["timing/generate_seconds"] + values["timing/train_seconds"]
    assert stages <= values["timing/update_seconds"]


def test_a_stage_that_fails_is_timed_too():
    watch = Stopwatch()
    with pytest.raises(KeyError), watch("reward"):
        raise KeyError
    assert "timing/reward_seconds" in watch.metrics()


def test_system_metrics_are_the_processes_own():
    process = psutil.Process()
    values = metrics.system_metrics(process)
    assert values["system/rss_bytes"] == pytest.approx(process.memory_info().rss, rel=0.1)
    assert values["system/cpu_percent"] >= 0.0
