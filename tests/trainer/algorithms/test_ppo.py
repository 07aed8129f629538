"""Whole updates of small PPO runs, against the method written out in plain torch."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import small_runs
import torch
from plain_ppo import PlainPpo
from small_runs import PPO, exported, rewards

train = partial(small_runs.train, base=PPO)
write_run = partial(small_runs.write_run, base=PPO)

DESCENT = {"training.optimizer": "sgd", "training.max_grad_norm": 1e9, "training.lr": 0.3}
PROMPTS = ["hello", "a", "two words"]
SCORES = rewards([0.0, 3.0, 1.0, 6.0], [2.0, 0.0, 5.0, 1.0], [1.0, 4.0, 0.0, 2.0])
OFF = {"ppo.critic.enabled": False}
SHARED = {"ppo.critic.kind": "shared"}
REFERENCE = {"ppo.kl_anchor": "reference", "ppo.kl_coefficient": 0.5}


# -- against the method --------------------------------------------------------------------------

LONG = {"ppo.updates": 3, "ppo.ppo_epochs": 2}
NUCLEUS = {"ppo.sampling.temperature": 0.7, "ppo.sampling.top_p": 0.5}
# Sampled in F16, so that the sampler's probabilities are not quite the trainer's.
ROUGH = {"training.rollout_weights": "f16", "training.fast_sampling_context": True}
CAPPED = {"training.importance_correction": "token", "training.importance_cap": 1.0}
CASES = {
    "no critic": OFF | LONG,
    "no critic, one step": OFF,
    "probe, a step an update": {"ppo.updates": 3},
    "probe that discounts": LONG | {"ppo.critic.gamma": 0.8, "ppo.critic.gae_lambda": 0.7},
    "shared": SHARED | LONG,
    "shared, gradients limited": SHARED | LONG | {"training.max_grad_norm": 0.05},
    "three steps a pass, of 2, 1 and 1": LONG | {"ppo.minibatches": 3},
    "toward the policy that wrote": LONG | {"ppo.kl_coefficient": 0.5, "training.lr": 0.1},
    "toward the initial policy": LONG | REFERENCE,
    "entropy": LONG | {"ppo.entropy_coefficient": 0.2},
    "from a cool nucleus": LONG | NUCLEUS | {"ppo.entropy_coefficient": 0.2},
    "corrected": LONG | ROUGH | CAPPED,
}
MORE_CASES = {
    "probe, several epochs": LONG,
    "probe, fitted harder": LONG | {"ppo.critic.value_lr": 0.05, "ppo.critic.value_epochs": 3},
    "shared, weighing much": SHARED | LONG | {"ppo.critic.value_loss_coefficient": 1.0},
    "two steps a pass": LONG | {"ppo.minibatches": 2},
    "a step for each answer": LONG | {"ppo.minibatches": 4, "training.lr": 0.1},
    "shared, three steps a pass": SHARED | LONG | {"ppo.minibatches": 3},
    "toward the initial policy, no critic": OFF | LONG | REFERENCE,
    "toward the initial policy, shared": SHARED | LONG | REFERENCE,
    "all at once": SHARED
    | REFERENCE
    | ROUGH
    | CAPPED
    | NUCLEUS
    | LONG
    | {"ppo.entropy_coefficient": 0.1, "ppo.minibatches": 2},
}
EVERY_CASE = [
    *(pytest.param(changes, id=name) for name, changes in CASES.items()),
    *(pytest.param(c, id=name, marks=pytest.mark.full) for name, c in MORE_CASES.items()),
]


def by_hand(tmp_path, model, recorder, scores, changes, prompts=PROMPTS):
    """The same run in plain torch: the adapter at its end, and the numbers of each update."""
    plain = PlainPpo(write_run(tmp_path, model, scores, changes, prompts=prompts))
    numbers = {u: plain.update(groups) for u, groups in recorder.groups.items()}
    return plain.adapter.state(), numbers


def assert_same(path, expected):
    """To 3e-4 of the largest move: rounding of 1e-7 grows with each large step."""
    result = exported(path)
    moved = max(float(v.abs().max()) for n, v in expected.items() if n.endswith("lora_b"))
    assert result.keys() == expected.keys()
    assert moved > 0.01
    for name, value in expected.items():
        np.testing.assert_allclose(result[name], value.numpy(), atol=3e-4 * moved, err_msg=name)


@pytest.mark.parametrize("changes", EVERY_CASE)
def test_a_run_equals_the_method_in_plain_torch(ending_model, tmp_path, changes):
    changes = DESCENT | changes
    recorder = train(tmp_path, ending_model, SCORES, changes, prompts=PROMPTS)
    lengths = {len(t.answer.tokens) for g in recorder.groups[1] for t in g.trajectories}
    assert len(lengths) > 1, "the case needs answers of several lengths"
    expected, numbers = by_hand(tmp_path, ending_model, recorder, SCORES, changes)
    assert_same(recorder.outcome.output, expected)
    for update, own in numbers.items():
        values = recorder.values[update]
        assert values["optimizer/grad_norm"] == pytest.approx(np.mean(own.norms), rel=1e-3)
        means = [float(a.mean()) for a in own.advantages]
        assert [a for [a] in recorder.advantages(update)] == pytest.approx(means, abs=1e-3)
        v, returns = torch.cat(own.values), torch.cat(own.returns)
        if "critic/value_mean" in values:
            assert values["critic/value_mean"] == pytest.approx(float(v.mean()), abs=1e-3)
            explained = 1 - float((returns - v).var() / returns.var())
            assert values["critic/explained_variance"] == pytest.approx(explained, abs=1e-3)


def test_clipping_and_kl_were_met_in_those_runs(ending_model, tmp_path):
    """What the comparison above would be blind without: clipped tokens, and values that moved."""
    recorder = train(tmp_path, ending_model, SCORES, DESCENT | LONG, prompts=PROMPTS)
    assert all(v["policy/clip_fraction"] > 0 for v in recorder.values.values())
    assert recorder.values[3]["critic/value_mean"] > 0.5


def test_the_penalty_toward_the_initial_policy_is_steered(ending_model, tmp_path):
    """β ← β · (1 + clip(KL / target − 1, ±0.2) · 4 / 10): the first update lies at KL 0, far below
    the target, and the others far above it."""
    changes = (
        DESCENT
        | REFERENCE
        | {
            "ppo.updates": 4,
            "ppo.ppo_epochs": 2,
            "ppo.kl_control.target": 1e-6,
            "ppo.kl_control.horizon": 10,
        }
    )
    recorder = train(tmp_path, ending_model, SCORES, changes, prompts=PROMPTS)
    used = [v["policy/kl_coefficient"] for v in recorder.values.values()]
    assert used == pytest.approx([0.5, 0.5 * 0.92, 0.5 * 0.92 * 1.08, 0.5 * 0.92 * 1.08**2])
    expected, numbers = by_hand(tmp_path, ending_model, recorder, SCORES, changes)
    assert_same(recorder.outcome.output, expected)
    assert used == pytest.approx([n.kl_coefficient for n in numbers.values()])
    distances = [v["policy/kl_per_answer"] for v in recorder.values.values()]
    assert distances == pytest.approx([n.kl_per_answer for n in numbers.values()], rel=1e-3)
    assert distances[0] == 0.0 < min(distances[1:])


def test_between_its_bounds_the_steering_is_proportional(ending_model, tmp_path):
    """Ten times as patient, and a target within a fifth of what is measured."""
    changes = DESCENT | REFERENCE | {"ppo.updates": 2, "ppo.kl_control.horizon": 40}
    probe = changes | {"ppo.kl_control.target": 1.0}
    measured = train(tmp_path, ending_model, SCORES, probe, prompts=PROMPTS).values[2]
    target = measured["policy/kl_per_answer"] / 1.1
    changes |= {"ppo.kl_control.target": target, "ppo.updates": 3}
    used = [
        v["policy/kl_coefficient"]
        for v in train(tmp_path, ending_model, SCORES, changes, prompts=PROMPTS).values.values()
    ]
    # −0.2 · 4 / 40, then +0.1 · 4 / 40
    assert used == pytest.approx([0.5, 0.49, 0.49 * 1.01])


# -- critic and none -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["probe", "shared"])
@pytest.mark.parametrize("penalty", [{}, REFERENCE], ids=["no penalty", "a penalty"])
def test_without_discount_a_critic_that_knows_nothing_changes_nothing(
    ending_model, tmp_path, kind, penalty
):
    """γ = λ = 1 and a zero head: a token's advantage is what is still to come, whitened, which is
    what an answer gets without a critic. The second update, in which the critic knows something,
    differs."""
    undiscounted = {"ppo.critic.kind": kind, "ppo.critic.gamma": 1.0, "ppo.critic.gae_lambda": 1.0}

    def result(folder, updates, changes):
        changes = DESCENT | penalty | changes | {"ppo.updates": updates}
        return train(tmp_path / folder, ending_model, SCORES, changes, prompts=PROMPTS)

    one, other = result("on", 1, undiscounted), result("off", 1, OFF)
    assert one.advantages(1) == other.advantages(1)
    a, b = exported(one.outcome.output), exported(other.outcome.output)
    for name, value in a.items():
        np.testing.assert_allclose(value, b[name], atol=1e-7, err_msg=name)
    assert max(np.abs(value).max() for name, value in a.items() if name.endswith("_b")) > 0.01
    one, other = result("on2", 2, undiscounted), result("off2", 2, OFF)
    assert one.advantages(1) == other.advantages(1)
    apart = np.array(one.advantages(2)) - np.array(other.advantages(2))
    assert np.abs(apart).max() > 1e-3


def test_without_a_critic_an_answers_tokens_share_its_whitened_reward(ending_model, tmp_path):
    recorder = train(tmp_path, ending_model, rewards([0.0, 3.0, 1.0, 6.0]), OFF)
    lengths = [len(g.trajectories[0].answer.tokens) for g in recorder.groups[1]]
    every = np.repeat([0.0, 3.0, 1.0, 6.0], lengths)
    white = (np.array([0.0, 3.0, 1.0, 6.0]) - every.mean()) / every.std(ddof=1)
    assert [a for [a] in recorder.advantages(1)] == pytest.approx(white.tolist(), abs=1e-6)


@pytest.mark.parametrize("kind", ["probe", "shared"])
def test_the_critic_knows_nothing_at_first(ending_model, tmp_path, kind):
    changes = {"ppo.critic.kind": kind, "ppo.updates": 2}
    recorder = train(tmp_path, ending_model, SCORES, changes, prompts=PROMPTS)
    first, second = recorder.values.values()
    assert (first["critic/value_mean"], first["critic/explained_variance"]) == (0.0, 0.0)
    assert second["critic/value_mean"] > 0.01


# -- ratios --------------------------------------------------------------------------------------

MODES = {
    "no critic": OFF,
    "probe": {},
    "shared": SHARED,
    "anchored to the rollout": {"ppo.kl_coefficient": 0.5},
    "anchored to the reference": REFERENCE,
    "no critic, anchored to the reference": OFF | REFERENCE,
    "entropy": {"ppo.entropy_coefficient": 0.1},
    "from a cool nucleus": NUCLEUS,
    "no critic, from a cool nucleus": OFF | NUCLEUS,
    "corrected": ROUGH | CAPPED,
}


@pytest.mark.parametrize("changes", [pytest.param(c, id=name) for name, c in MODES.items()])
def test_every_ratio_is_one_before_the_first_step(ending_model, tmp_path, changes):
    changes = {"ppo.updates": 3, "ppo.rollout_batch_size": 5} | changes
    recorder = train(tmp_path, ending_model, SCORES, changes, prompts=PROMPTS)
    assert recorder.outcome.status == "completed"
    for values in recorder.values.values():
        assert values["policy/ratio_max"] == 1.0
        assert values["policy/clip_fraction"] == 0.0
        assert values["policy/approx_kl"] == 0.0
        assert values["optimizer/grad_norm"] > 0.001


@pytest.mark.parametrize("changes", [OFF, {}, SHARED], ids=["no critic", "probe", "shared"])
def test_truncation_by_top_p_does_not_bias_the_ratio(ending_model, tmp_path, changes):
    """``old`` and the sampler's log-probabilities are both over the whole vocabulary at the
    sampling temperature: were the nucleus renormalised, they would lie log 2 apart."""
    changes = {"ppo.updates": 3, "ppo.minibatches": 2} | NUCLEUS | changes
    recorder = train(tmp_path, ending_model, SCORES, changes, prompts=PROMPTS)
    for values in recorder.values.values():
        assert values["sampler/logprob_gap_max"] < 1e-5
        assert abs(values["sampler/kl"]) < 1e-9


def test_answers_come_from_the_nucleus_and_keep_their_whole_log_probability(model, tmp_path):
    changes = NUCLEUS | {"ppo.rollout_batch_size": 8}
    recorder = train(tmp_path, model, SCORES, changes, prompts=PROMPTS)
    plain = PlainPpo(write_run(tmp_path, model, SCORES, changes, prompts=PROMPTS))
    beyond = []
    for i, [t] in enumerate(g.trajectories for g in recorder.groups[1]):
        text = [*plain.prompts[i % len(PROMPTS)], *t.answer.tokens.tolist()]
        logits = plain.decoder.logits(text, None)[-len(t.answer.tokens) - 1 : -1] / 0.7
        logprobs = logits.log_softmax(-1)
        chosen = logprobs.gather(1, torch.from_numpy(t.answer.tokens).long()[:, None])
        np.testing.assert_allclose(chosen[:, 0].numpy(), t.answer.logprobs, atol=1e-5)
        # a token is in the nucleus where the more probable ones do not reach top_p by themselves
        more = torch.where(logprobs > chosen, logprobs.exp(), 0.0).sum(-1)
        assert (more < 0.5 + 1e-6).all()
        beyond.append(float((logprobs.sort(-1, descending=True)[0].exp().cumsum(-1) > 0.5).sum()))
    assert min(beyond) > 100, "the nucleus must leave out most of the vocabulary"


# -- small batches -------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [OFF, {}, SHARED], ids=["no critic", "probe", "shared"])
def test_answers_of_one_token_train(model, tmp_path, changes):
    changes = DESCENT | LONG | {"ppo.sampling.max_new_tokens": 1} | changes
    recorder = train(tmp_path, model, SCORES, changes, prompts=PROMPTS)
    expected, _ = by_hand(tmp_path, model, recorder, SCORES, changes)
    assert_same(recorder.outcome.output, expected)


@pytest.mark.parametrize("changes", [{}, SHARED], ids=["probe", "shared"])
def test_a_batch_of_one_answer_trains_with_a_critic(model, tmp_path, changes):
    changes = DESCENT | LONG | {"ppo.rollout_batch_size": 1} | changes
    recorder = train(tmp_path, model, SCORES, changes, prompts=PROMPTS)
    assert recorder.status[2] == "trained"
    expected, _ = by_hand(tmp_path, model, recorder, SCORES, changes)
    assert_same(recorder.outcome.output, expected)


# -- what changes no result ----------------------------------------------------------------------

SETTINGS = [
    {"training.micro_batch": 1},
    {"training.micro_batch": 24},
    {"training.shared_prefix_fanout": "off"},
    {"training.shared_prefix_fanout": 2},
    {"training.gradient_checkpointing": True},
    {"training.ce_chunk_tokens": 3},
    {"training.generation_concurrency": 1},
    {"training.generation_concurrency": 3},
]
PLAN = LONG | {"ppo.minibatches": 2, "ppo.rollout_batch_size": 6, "ppo.entropy_coefficient": 0.1}


def sampled(recorder):
    return [
        t.answer.tokens.tolist()
        for groups in recorder.groups.values()
        for group in groups
        for t in group.trajectories
    ]


@pytest.fixture(scope="module", params=["shared", pytest.param("probe", marks=pytest.mark.full)])
def plain_run(request, ending_model, tmp_path_factory):
    plan = PLAN | {"ppo.critic.kind": request.param}
    folder = tmp_path_factory.mktemp("plain")
    return plan, train(folder, ending_model, SCORES, plan, prompts=PROMPTS)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: "=".join(map(str, *s.items())))
def test_the_result_does_not_depend_on_how_it_is_computed(
    ending_model, plain_run, tmp_path, setting
):
    plan, plain = plain_run
    changed = train(tmp_path, ending_model, SCORES, plan | setting, prompts=PROMPTS)
    assert sampled(changed) == sampled(plain)
    expected = exported(plain.outcome.output)
    for name, value in exported(changed.outcome.output).items():
        assert np.abs(expected[name]).max() > 0.02
        np.testing.assert_allclose(value, expected[name], atol=1e-3, err_msg=name)
    for update, values in plain.values.items():
        for name in ("policy/surrogate_loss", "policy/value_loss", "policy/entropy"):
            assert changed.values[update][name] == pytest.approx(values[name], abs=1e-4)


def test_the_seed_decides_a_run(ending_model, tmp_path):
    def result(folder, seed):
        changes = LONG | {"ppo.sampling.seed": seed, "ppo.minibatches": 2}
        recorder = train(tmp_path / folder, ending_model, SCORES, changes, prompts=PROMPTS)
        return exported(recorder.outcome.output)

    one, same, other = result("1", 1), result("2", 1), result("3", 2)
    assert all(np.array_equal(one[name], same[name]) for name in one)
    assert any(not np.array_equal(one[name], other[name]) for name in one)
