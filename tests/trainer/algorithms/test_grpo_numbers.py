"""What a run stores: which numbers, and how the schedules and guards show in them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from small_runs import exported, opened, rewards, spoil_from, train, write_run

from trainer.errors import TrainingError

TWO = {"grpo.prompts_per_update": 2}
DESCENT = {"training.optimizer": "sgd", "training.max_grad_norm": 1e9}
LIVE, DEAD = [0.0, 1.0, 0.0, 2.0], [1.0] * 4

ALWAYS = {
    *(f"reward/{n}" for n in ("mean", "min", "max", "std", "group_std", "verifiable_mean")),
    *(f"completions/length_{n}" for n in ("mean", "min", "max")),
    "completions/truncation_fraction",
    "completions/duplicate_fraction",
    "batch/zero_std_group_fraction",
    "batch/trained_fraction",
    "batch/advantage_abs_mean",
    "throughput/generate_tokens_per_second",
    "system/rss_bytes",
    "system/cpu_percent",
    *(f"timing/{n}_seconds" for n in ("generate", "reward", "update")),
    *(f"audit/{n}" for n in ("verbosity", "sycophancy", "repetition", "words_mean", "over_limit")),
}
TRAINED = ALWAYS | {
    *(f"policy/{n}" for n in ("surrogate_loss", "total_loss", "approx_kl", "entropy", "ratio_max")),
    *(f"policy/clip_fraction{n}" for n in ("", "_low", "_high")),
    *(f"optimizer/{n}" for n in ("learning_rate", "grad_norm", "step")),
    *(f"sampler/{n}" for n in ("logprob_gap_mean", "logprob_gap_max", "kl")),
    *(f"packing/{n}" for n in ("fanout", "passes", "shared_prefix_fraction", "padding_fraction")),
    *(f"timing/{n}_seconds" for n in ("score", "train", "swap")),
    "throughput/train_tokens_per_second",
}
PENALTY = {"policy/kl", "policy/kl_coefficient", "policy/kl_per_answer"}
CORRECTED = {"sampler/correction_capped_fraction"}
ON_A_GPU = {"system/gpu_bytes"}


def names(recorder, update):
    return set(recorder.values[update]) - ON_A_GPU


def test_names_of_a_trained_and_of_a_skipped_update(model, tmp_path):
    recorder = train(tmp_path, model, rewards(LIVE, DEAD), {"grpo.updates": 2})
    assert names(recorder, 1) == TRAINED
    assert names(recorder, 2) == ALWAYS


def test_names_that_options_and_the_reward_program_add(model, tmp_path):
    program = (
        "def score(batch, index, request):\n"
        "    return {'reward': index, 'parts': {'format': index / 2}}\n"
    )
    changes = {"grpo.kl_coefficient": 0.1, "training.importance_correction": "token"}
    recorder = train(tmp_path, model, program, changes)
    assert names(recorder, 1) == TRAINED | PENALTY | CORRECTED | {"reward/parts/format"}
    assert recorder.values[1]["reward/parts/format"] == 0.75
    assert [t.parts for t in recorder.groups[1][0].trajectories][3] == {"format": 1.5}


@pytest.fixture(scope="module")
def watched(model, tmp_path_factory):
    """Two updates of two groups and three epochs, long enough to leave the clip range."""
    changes = TWO | {"grpo.updates": 2, "grpo.grpo_epochs": 3, "grpo.kl_coefficient": 0.1}
    scores = rewards([0.0, 1.0, 0.0, 3.0, 2.0, 2.0, 2.0, 4.0])
    folder = tmp_path_factory.mktemp("watched")
    return train(folder, model, scores, changes | {"training.lr": 0.02}, prompts=["a", "bcd"])


def test_every_value_is_finite(watched):
    assert all(math.isfinite(v) for values in watched.values.values() for v in values.values())


def test_reward_metrics_of_a_run(watched):
    values = watched.values[1]
    assert values["reward/mean"] == 1.75
    assert (values["reward/min"], values["reward/max"]) == (0.0, 4.0)
    # groups of variance 1.5 and 0.75
    assert values["reward/group_std"] == pytest.approx((math.sqrt(1.5) + math.sqrt(0.75)) / 2)
    # mean distances from 1 and from 2.5: (1 + 0 + 1 + 2) / 4 and (0.5 + 0.5 + 0.5 + 1.5) / 4
    assert values["batch/advantage_abs_mean"] == pytest.approx((1.0 + 0.75) / 2)


def test_stages_are_timed_and_fit_into_the_update(watched):
    for values in watched.values.values():
        stages = [
            v for n, v in values.items() if n.startswith("timing/") and n != "timing/update_seconds"
        ]
        assert len(stages) == 5
        assert min(stages) > 0.0
        assert sum(stages) <= values["timing/update_seconds"]


def test_throughput_is_tokens_by_the_time_of_their_stage(watched):
    for values in watched.values.values():
        tokens = values["completions/length_mean"] * 8
        assert values["throughput/generate_tokens_per_second"] == pytest.approx(
            tokens / values["timing/generate_seconds"]
        )
        assert values["throughput/train_tokens_per_second"] == pytest.approx(
            3 * tokens / values["timing/train_seconds"]
        )


def test_clip_fractions_add_up_and_ratios_leave_one(watched):
    for values in watched.values.values():
        parts = values["policy/clip_fraction_low"] + values["policy/clip_fraction_high"]
        assert values["policy/clip_fraction"] == pytest.approx(parts)
        assert 0 < values["policy/clip_fraction"] < 0.9
        assert values["policy/ratio_max"] > 1.28
        assert values["policy/approx_kl"] > 0.0


def test_packing_of_a_run(watched):
    values = watched.values[1]
    assert (values["packing/fanout"], values["packing/passes"]) == (4.0, 6.0)


def test_entropy_is_near_that_of_a_random_model(watched):
    # 260 tokens; a uniform distribution would have log 260 = 5.56
    assert 4.0 < watched.values[1]["policy/entropy"] < math.log(260)


def test_a_reward_too_large_for_training_is_named(model, tmp_path):
    recorder = train(tmp_path, model, rewards([0.0, 1e39, 0.0, 1.0]))
    assert recorder.outcome.status == "failed"
    assert "a reward of 1e+39 is too large" in recorder.outcome.message


def test_a_number_that_is_not_finite_is_warned_of(model, tmp_path):
    """A part of the reward whose sum over the answers overflows."""
    program = (
        "def score(batch, index, request):\n"
        "    return {'reward': index, 'parts': {'large': 1.7e308}}\n"
    )
    recorder = train(tmp_path, model, program)
    assert recorder.values[1]["reward/parts/large"] == math.inf
    assert recorder.messages("nonfinite_metric") == [
        "not finite, and stored as null: reward/parts/large"
    ]


def test_a_verbose_run_tells_every_number(model, tmp_path):
    recorder = train(tmp_path, model, rewards(LIVE), {"run.verbose": True})
    [message] = recorder.messages("all_metrics")
    assert [line.split(" = ")[0] for line in message.splitlines()] == sorted(recorder.values[1])
    assert "reward/mean = 0.75" in message.splitlines()


# -- KL ------------------------------------------------------------------------------------------


def test_kl_is_zero_where_training_starts_and_grows_from_there(model, tmp_path):
    changes = {"grpo.kl_coefficient": 0.1, "grpo.updates": 3}
    recorder = train(tmp_path, model, rewards(LIVE), changes)
    first, second, third = recorder.values.values()
    assert first["policy/kl"] == 0.0
    assert first["policy/kl_per_answer"] == 0.0
    assert 0.0 < second["policy/kl"] < third["policy/kl"]
    # one step an update: the policy that is penalised is the one that generated
    for values in (second, third):
        length = values["completions/length_mean"]
        assert values["policy/kl_per_answer"] == pytest.approx(values["policy/kl"] * length)


def test_a_strong_penalty_keeps_the_policy_near_the_initial_one(model, tmp_path):
    def drift(folder, coefficient):
        changes = {"grpo.kl_coefficient": coefficient, "grpo.updates": 8, "grpo.grpo_epochs": 2}
        return train(tmp_path / folder, model, rewards(LIVE), changes).values[8]["policy/kl"]

    assert drift("strong", 20.0) < 0.5 * drift("weak", 1e-6)


def test_the_kl_coefficient_warms_up_over_updates_and_then_follows_its_target(model, tmp_path):
    changes = {
        "grpo.updates": 6,
        "grpo.kl_coefficient": 0.3,
        "grpo.kl_schedule.warmup_updates": 3,
        "grpo.kl_schedule.target": 1000.0,
    }
    recorder = train(tmp_path, model, rewards(LIVE), changes)
    used = [v["policy/kl_coefficient"] for v in recorder.values.values()]
    # the measured KL is far below the target, so it is divided by 1.5 from the fourth on
    assert used == pytest.approx([0.1, 0.2, 0.3, 0.3, 0.2, 0.2 / 1.5])


# -- learning rate -------------------------------------------------------------------------------


def test_linear_counts_the_planned_steps_whether_or_not_a_group_had_signal(model, tmp_path):
    """Three updates of two groups are planned: six steps, the last at a sixth of the rate. The
    first update makes both of its steps, the second none, the third one of two."""
    changes = TWO | {"grpo.updates": 3, "training.lr_scheduler": "linear", "training.lr": 0.006}
    scores = rewards(LIVE + LIVE, DEAD + DEAD, LIVE + DEAD)
    recorder = train(tmp_path, model, scores, changes, prompts=["a", "b"])
    rates = [v.get("optimizer/learning_rate") for v in recorder.values.values()]
    assert rates == [pytest.approx(0.005), None, pytest.approx(0.002)]


@pytest.mark.parametrize(
    ("changes", "rates"),
    [
        ({"training.warmup_steps": 3}, [0.25, 0.5, 0.75, 1.0]),
        ({"training.lr_scheduler": "linear"}, [1.0, 0.75, 0.5, 0.25]),
        ({"training.lr_scheduler": "cosine"}, [1.0, 0.853553, 0.5, 0.146447]),
        ({"training.lr_scheduler": "linear", "training.warmup_steps": 2}, [1 / 3, 2 / 3, 1.0, 0.5]),
    ],
)
def test_steps_are_made_at_the_scheduled_rate(model, tmp_path, changes, rates):
    """Plain descent with a norm limit of 1e-3 moves the adapter by rate x 1e-3 an update."""
    changes = DESCENT | changes | {"training.max_grad_norm": 1e-3, "training.lr": 1.0}
    config = write_run(tmp_path, model, rewards(LIVE), changes | {"grpo.updates": 4})
    moves = []
    with opened(config) as session:
        for update in range(1, 5):
            before = session.adapter.state()
            session.loop.update(update)
            after = session.adapter.state()
            moves.append(sum(float((after[n] - before[n]).square().sum()) for n in after) ** 0.5)
    assert moves == pytest.approx([1e-3 * rate for rate in rates], rel=1e-3)


# -- guards --------------------------------------------------------------------------------------


def same_adapter(one, other):
    a, b = exported(one.outcome.output), exported(other.outcome.output)
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def test_the_trust_region_guard_keeps_the_last_completed_update(model, tmp_path):
    """Plain descent steps as far as the rewards are apart: in the first update an answer's ratio
    stays within the narrow band, in the second both answers have left it after one step."""
    changes = DESCENT | {
        "grpo.grpo_epochs": 2,
        "grpo.group_size": 2,
        "grpo.importance_sampling_level": "sequence",
        "grpo.clip_range_low": 3e-4,
        "grpo.clip_range_high": 4e-4,
        "training.lr": 0.1,
    }
    scores = rewards([0.0, 1e-4], [0.0, 1.0])
    stopped = train(tmp_path / "2", model, scores, changes | {"grpo.updates": 5})
    kept = train(tmp_path / "1", model, scores, changes)
    assert kept.values[1]["policy/clip_fraction"] == 0.0
    assert (stopped.outcome.status, stopped.outcome.updates) == ("failed", 1)
    assert "the trust-region guard stopped the run: 100%" in stopped.outcome.message
    assert "The adapter of update 1, the last completed one, is in" in stopped.outcome.message
    assert same_adapter(stopped, kept)
    # what the failed update sampled is told; its numbers are not, for it did not take place
    assert (list(stopped.groups), list(stopped.values)) == ([1, 2], [1])


def test_a_loss_that_is_not_finite_keeps_the_last_completed_update(model, tmp_path, monkeypatch):
    kept = train(tmp_path / "1", model, rewards(LIVE))
    spoil_from(monkeypatch, 2)
    stopped = train(tmp_path / "2", model, rewards(LIVE), {"grpo.updates": 3})
    assert (stopped.outcome.status, stopped.outcome.updates) == ("failed", 1)
    assert "the loss is" in stopped.outcome.message
    assert same_adapter(stopped, kept)


def test_a_failed_update_gives_back_the_adapter_it_started_from(model, tmp_path, monkeypatch):
    config = write_run(tmp_path, model, rewards(LIVE), {"grpo.updates": 2, "grpo.grpo_epochs": 2})
    spoil_from(monkeypatch, 4)
    with opened(config) as session:
        session.loop.update(1)
        before = session.adapter.state()
        with pytest.raises(TrainingError, match="the loss is"):
            session.loop.train()
        after = session.adapter.state()
    assert all(np.array_equal(after[name], value) for name, value in before.items())
    assert (session.loop.completed, session.loop.trained) == (1, 1)
