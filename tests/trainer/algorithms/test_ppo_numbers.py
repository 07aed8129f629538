"""What a PPO run stores, and what it does where there is nothing to learn or something is wrong."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import small_runs
import torch
from small_runs import PPO, exported, opened, rewards, spoil_from

from trainer.errors import TrainingError

train = partial(small_runs.train, base=PPO)
write_run = partial(small_runs.write_run, base=PPO)

DESCENT = {"training.optimizer": "sgd", "training.max_grad_norm": 1e9}
PROMPTS = ["hello", "a", "two words"]
LIVE, DEAD = [0.0, 1.0, 0.5, 2.0], [1.0] * 4
OFF = {"ppo.critic.enabled": False}
SHARED = {"ppo.critic.kind": "shared"}
REFERENCE = {"ppo.kl_anchor": "reference", "ppo.kl_coefficient": 0.5}

# -- names ---------------------------------------------------------------------------------------

ALWAYS = {
    *(f"reward/{n}" for n in ("mean", "min", "max", "std", "verifiable_mean")),
    *(f"completions/length_{n}" for n in ("mean", "min", "max")),
    "completions/truncation_fraction",
    "completions/duplicate_fraction",
    "batch/trained_fraction",
    "batch/advantage_abs_mean",
    *(f"audit/{n}" for n in ("verbosity", "sycophancy", "repetition", "words_mean", "over_limit")),
    "throughput/generate_tokens_per_second",
    "system/rss_bytes",
    "system/cpu_percent",
    *(f"timing/{n}_seconds" for n in ("generate", "reward", "score", "update")),
}
SAMPLER = {f"sampler/{n}" for n in ("logprob_gap_mean", "logprob_gap_max", "kl")}
TRAINED = (
    ALWAYS
    | SAMPLER
    | {
        *(f"policy/{n}" for n in ("surrogate_loss", "total_loss", "approx_kl", "entropy")),
        "policy/ratio_max",
        *(f"policy/clip_fraction{n}" for n in ("", "_low", "_high")),
        *(f"optimizer/{n}" for n in ("learning_rate", "grad_norm", "step")),
        *(f"packing/{n}" for n in ("fanout", "passes", "shared_prefix_fraction")),
        "packing/padding_fraction",
        *(f"timing/{n}_seconds" for n in ("train", "swap")),
        "throughput/train_tokens_per_second",
    }
)
CRITIC = {
    "policy/value_loss",
    "critic/value_mean",
    "critic/feature_mib",
    "critic/explained_variance",
}
PENALTY = {"policy/kl", "policy/kl_coefficient"}
ON_A_GPU = {"system/gpu_bytes"}


def names(recorder, update):
    return set(recorder.values[update]) - ON_A_GPU


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        pytest.param(OFF, set(), id="no critic"),
        pytest.param({}, CRITIC, id="probe"),
        pytest.param(SHARED, CRITIC, id="shared"),
        pytest.param(OFF | {"ppo.kl_coefficient": 0.1}, PENALTY, id="anchored to the rollout"),
        pytest.param(
            OFF | REFERENCE, PENALTY | {"policy/kl_per_answer"}, id="anchored to the reference"
        ),
    ],
)
def test_names_of_a_trained_update(ending_model, tmp_path, changes, more):
    recorder = train(tmp_path, ending_model, rewards(LIVE), changes)
    assert names(recorder, 1) == TRAINED | more


def test_names_of_a_skipped_update(ending_model, tmp_path):
    recorder = train(tmp_path, ending_model, rewards(LIVE, DEAD), {"ppo.updates": 2})
    # the critic is still fitted, so there is time in training
    assert names(recorder, 2) - {"timing/train_seconds"} == ALWAYS | SAMPLER | CRITIC - {
        "critic/explained_variance"
    }


def test_the_values_of_a_run(ending_model, tmp_path):
    changes = REFERENCE | {"ppo.updates": 2, "ppo.ppo_epochs": 3, "training.lr": 0.02}
    recorder = train(tmp_path, ending_model, rewards(LIVE), changes, prompts=PROMPTS)
    for update, values in recorder.values.items():
        assert all(math.isfinite(v) for v in values.values())
        assert (values["reward/mean"], values["reward/max"]) == (0.875, 2.0)
        assert values["batch/trained_fraction"] == 1.0
        means = [abs(a) for [a] in recorder.advantages(update)]
        assert values["batch/advantage_abs_mean"] == pytest.approx(np.mean(means))
        assert values["optimizer/step"] == 3.0 * update
        assert values["policy/kl_coefficient"] == 0.5
        stages = [
            v for n, v in values.items() if n.startswith("timing/") and n != "timing/update_seconds"
        ]
        assert len(stages) == 5
        assert sum(stages) <= values["timing/update_seconds"]


def test_kl_is_zero_where_training_starts_and_grows_from_there(ending_model, tmp_path):
    """With one step an update, the policy that is measured in the loss is the one that wrote."""
    recorder = train(tmp_path, ending_model, rewards(LIVE), REFERENCE | {"ppo.updates": 3})
    first, second, third = recorder.values.values()
    assert first["policy/kl"] == first["policy/kl_per_answer"] == 0.0
    assert 0.0 < second["policy/kl"] < third["policy/kl"]
    for values in (second, third):
        length = values["completions/length_mean"]
        assert values["policy/kl_per_answer"] == pytest.approx(
            values["policy/kl"] * length, rel=1e-3
        )


def test_kl_toward_the_rollout_is_zero_until_a_step_is_made(ending_model, tmp_path):
    kl = {"ppo.kl_coefficient": 0.1}
    one = train(tmp_path / "1", ending_model, rewards(LIVE), kl)
    two = train(tmp_path / "2", ending_model, rewards(LIVE), kl | {"ppo.ppo_epochs": 2})
    assert one.values[1]["policy/kl"] == 0.0 < two.values[1]["policy/kl"]


@pytest.mark.parametrize("anchor", ["rollout", "reference"])
def test_a_strong_penalty_keeps_the_policy_near(ending_model, tmp_path, anchor):
    def drift(folder, coefficient):
        changes = {
            "ppo.kl_anchor": anchor,
            "ppo.kl_coefficient": coefficient,
            "ppo.updates": 6,
            "ppo.ppo_epochs": 3,
        }
        return train(tmp_path / folder, ending_model, rewards(LIVE), changes).values[6]["policy/kl"]

    assert drift("strong", 20.0) < 0.5 * drift("weak", 1e-6)


def test_an_entropy_bonus_keeps_the_policy_undecided(ending_model, tmp_path):
    def entropy(folder, coefficient):
        changes = {
            "ppo.entropy_coefficient": coefficient,
            "ppo.updates": 8,
            "ppo.ppo_epochs": 2,
        }
        recorder = train(tmp_path / folder, ending_model, rewards(LIVE), changes)
        return [v["policy/entropy"] for v in recorder.values.values()]

    with_bonus, without = entropy("1", 5.0), entropy("0", 0.0)
    assert with_bonus[0] == pytest.approx(without[0], abs=1e-6)
    assert with_bonus[-1] > without[-1] + 0.02


def test_steps_a_pass_count_in_the_schedule(ending_model, tmp_path):
    """Two updates of two passes of two steps: of eight planned steps the last of the first update
    is the fourth, at 5/8 of the rate."""
    changes = {
        "ppo.updates": 2,
        "ppo.ppo_epochs": 2,
        "ppo.minibatches": 2,
        "training.lr_scheduler": "linear",
        "training.lr": 0.008,
    }
    recorder = train(tmp_path, ending_model, rewards(LIVE), changes)
    rates = [v["optimizer/learning_rate"] for v in recorder.values.values()]
    assert rates == pytest.approx([0.005, 0.001])
    assert [v["optimizer/step"] for v in recorder.values.values()] == [4.0, 8.0]
    assert "train 4/4" in recorder.calls


def test_sample_score_train_in_this_order(ending_model, tmp_path):
    recorder = train(tmp_path, ending_model, rewards(LIVE), REFERENCE | {"ppo.updates": 2})
    stages = ("generate", "reward", "score", "trajectories", "train", "metrics")
    calls = [c.split()[0] for c in recorder.calls if c.split()[0] in stages]
    kept = [s for i, s in enumerate(calls) if i == 0 or calls[i - 1] != s]
    assert kept == [*stages, *stages]
    for end in ("generate 4/4", "reward 4/4", "score 8/8", "train 1/1"):
        assert recorder.calls.count(end) == 2


# -- nothing to learn ----------------------------------------------------------------------------

UNDISCOUNTED = {"ppo.critic.gae_lambda": 1.0}


@pytest.mark.parametrize("changes", [OFF, UNDISCOUNTED], ids=["no critic", "critic"])
def test_equal_rewards_are_skipped_and_change_nothing(ending_model, tmp_path, changes):
    scores = rewards([2.0] * 4)
    config = write_run(tmp_path, ending_model, scores, changes, prompts=PROMPTS)
    recorder = small_runs.Recorder()
    with opened(config, recorder) as session:
        before = session.adapter.state()
        session.loop.update(1)
        after = session.adapter.state()
        assert (session.loop.completed, session.loop.trained) == (1, 0)
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert recorder.status == {1: "skipped"}
    assert recorder.messages("update_skipped") == [
        "every answer got the reward 2: nothing to learn"
    ]
    assert recorder.advantages(1) == [[0.0]] * 4
    reasons = {(t.trained, t.skip_reason) for g in recorder.groups[1] for t in g.trajectories}
    assert reasons == {(False, "zero_signal")}
    assert not any(name.startswith(("policy/clip", "optimizer/")) for name in recorder.values[1])


@pytest.mark.parametrize("changes", [OFF, {}], ids=["no critic", "critic"])
def test_equal_rewards_are_skipped_where_the_penalty_is_zero_yet(ending_model, tmp_path, changes):
    """In the first update the policy is the initial one."""
    recorder = train(tmp_path, ending_model, rewards([2.0] * 4), REFERENCE | changes)
    assert recorder.status == {1: "skipped"}
    assert recorder.outcome.output is None


def test_a_skipped_update_between_others_leaves_no_trace(ending_model, tmp_path):
    """One prompt over and over, so that the third update samples what the second would have."""
    changes = DESCENT | OFF
    longer = train(
        tmp_path / "2",
        ending_model,
        rewards([0.0, 1.0, 3.0, 0.5], [1.0] * 4),
        changes | {"ppo.updates": 2},
    )
    shorter = train(tmp_path / "1", ending_model, rewards([0.0, 1.0, 3.0, 0.5]), changes)
    assert longer.status == {1: "trained", 2: "skipped"}
    for name, value in exported(shorter.outcome.output).items():
        np.testing.assert_array_equal(exported(longer.outcome.output)[name], value)


@pytest.mark.parametrize("changes", [OFF, UNDISCOUNTED], ids=["no critic", "critic"])
def test_a_run_that_never_learns_exports_nothing_and_fails(ending_model, tmp_path, changes):
    recorder = train(tmp_path, ending_model, rewards([0.5] * 4), changes | {"ppo.updates": 3})
    assert (recorder.outcome.status, recorder.outcome.output) == ("failed", None)
    assert recorder.outcome.message == (
        "no answer carried signal in any update, so there is nothing to export"
    )
    assert list(recorder.status.values()) == ["skipped"] * 3
    assert not (tmp_path / "adapter.gguf").exists()


# -- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reward",
    [1e39, 1e30],
)
def test_a_reward_too_large_for_training_is_named(ending_model, tmp_path, reward):
    recorder = train(tmp_path, ending_model, rewards([0.0, reward, 0.0, 1.0]))
    assert recorder.outcome.status == "failed"
    assert f"a reward of {reward:g} is too large" in recorder.outcome.message
    assert "Keep rewards within about ±1000" in recorder.outcome.message


def test_the_trust_region_guard_stops_a_policy_that_has_left_its_answers(model, tmp_path):
    """Two answers of one token each: after one step both have left the narrow band."""
    changes = DESCENT | OFF | {"ppo.clip_range": 1e-4, "ppo.ppo_epochs": 2, "training.lr": 0.1}
    changes |= {"ppo.rollout_batch_size": 2, "ppo.sampling.max_new_tokens": 1}
    recorder = train(tmp_path, model, rewards([0.0, 1.0]), changes, prompts=PROMPTS)
    assert (recorder.outcome.status, recorder.outcome.output) == ("failed", None)
    assert "the trust-region guard stopped the run: 100%" in recorder.outcome.message
    assert "ppo_epochs" in recorder.outcome.message


def test_a_failed_update_gives_back_the_adapter_it_started_from(
    ending_model, tmp_path, monkeypatch
):
    changes = SHARED | {"ppo.updates": 2, "ppo.ppo_epochs": 2, "ppo.minibatches": 1}
    config = write_run(tmp_path, ending_model, rewards(LIVE), changes)
    spoil_from(monkeypatch, 4)
    with opened(config) as session:
        session.loop.update(1)
        before = session.adapter.state()
        with pytest.raises(TrainingError, match="the loss is -inf"):
            session.loop.train()
        after = session.adapter.state()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert (session.loop.completed, session.loop.trained) == (1, 1)
