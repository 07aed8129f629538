from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from small_runs import answer, group

from trainer.algorithms.optimise import (
    GrpoObjective,
    PassStats,
    run_pass,
    score_groups,
    shuffled,
)
from trainer.errors import TrainingError
from trainer.gguf.file import GgufFile
from trainer.gguf.tensors import select_targets
from trainer.model.adapter import Adapter
from trainer.model.decoder import Decoder
from trainer.model.learner import Learner, OptimizerSettings, PassOutput, PassSettings
from trainer.model.logprobs import TokenScores

CPU = torch.device("cpu")

# -- the loss by hand ----------------------------------------------------------------------------

# Two answers, of two tokens and of one, with rewards 0 and 1: advantages -0.5 and +0.5. Ratios 0.5
# (held at 0.8), 1.1, and 1.5 (held at 1.28). The divisor is 2 answers x 4 tokens.
OLD = [[-1.0, -2.0], [-3.0]]
NEW = [-1.0 + math.log(0.5), -2.0 + math.log(1.1), -3.0 + math.log(1.5)]
TERMS = [0.5 * 0.8, 0.5 * 1.1, -0.5 * 1.28]
DIVISOR = 8.0
SHAPE = {"grpo.group_size": 2, "grpo.sampling.max_new_tokens": 4}


def made_group(config, *, sampler=None, reference=None, scores=(0.0, 1.0)):
    drawn = [-1.0] * 3 if sampler is None else sampler
    answers = [answer(1, 2, logprobs=drawn[:2]), answer(3, logprobs=drawn[2:])]
    made = group(config, scores, answers)
    made.old = [torch.tensor(o) for o in OLD]
    if reference is not None:
        made.reference = [torch.tensor(reference[:2]), torch.tensor(reference[2:])]
    return made


def output(logprobs=NEW, *, answers=(0, 1), lengths=(2, 1)):
    scores = TokenScores(torch.tensor(logprobs), torch.full((len(logprobs),), 2.0))
    return PassOutput(scores, tuple(answers), torch.tensor(lengths))


def loss_of(config, made, out, *, kl_coefficient=0.0, stats=None):
    objective = GrpoObjective(config.grpo, config.training, kl_coefficient)
    return objective(made, out, stats or PassStats()).item()


def test_loss_is_the_sum_over_tokens_by_the_constant_divisor(configured):
    config = configured(SHAPE)
    assert loss_of(config, made_group(config), output()) == pytest.approx(sum(TERMS) / DIVISOR)


def test_a_masked_answer_changes_no_weight(configured):
    """Three answers of which one is masked: the divisor counts the group's configured size."""
    config = configured(SHAPE | {"grpo.group_size": 3, "grpo.mask_truncated": True})
    answers = [answer(1, 2), answer(8, 8, 8, 8, finished=False), answer(3)]
    made = group(config, [0.0, 50.0, 1.0], answers)
    made.old = [torch.tensor(o) for o in OLD]
    assert loss_of(config, made, output()) == pytest.approx(sum(TERMS) / 12)


def test_answers_may_come_in_any_order_and_in_any_number_of_passes(configured):
    config = configured(SHAPE)
    made = made_group(config)
    turned = output([NEW[2], NEW[0], NEW[1]], answers=(1, 0), lengths=(1, 2))
    assert loss_of(config, made, turned) == pytest.approx(sum(TERMS) / DIVISOR)
    first = loss_of(config, made, output(NEW[:2], answers=(0,), lengths=(2,)))
    second = loss_of(config, made, output(NEW[2:], answers=(1,), lengths=(1,)))
    assert (first, second) == pytest.approx((sum(TERMS[:2]) / DIVISOR, TERMS[2] / DIVISOR))


def test_the_penalty_adds_k3_toward_the_initial_policy(configured):
    config = configured(SHAPE | {"grpo.kl_coefficient": 0.1})
    made = made_group(config, reference=[NEW[0], NEW[1] + 0.5, NEW[2] - 1.0])
    k3 = [0.0, math.exp(0.5) - 1.5, math.exp(-1.0)]
    stats = PassStats()
    value = loss_of(config, made, output(), kl_coefficient=0.1, stats=stats)
    assert value == pytest.approx((sum(TERMS) + 0.1 * sum(k3)) / DIVISOR)
    assert stats.kl == pytest.approx(sum(k3))


def test_importance_correction_weighs_the_policy_term_and_not_the_penalty(configured):
    changes = SHAPE | {"grpo.kl_coefficient": 0.1, "training.importance_cap": 1.5}
    # old / sampler: 2 (capped at 1.5), 1, and 0.5
    sampler = [-1.0 - math.log(2.0), -2.0, -3.0 + math.log(2.0)]
    reference = [NEW[0], NEW[1], NEW[2] - 1.0]
    corrected = [1.5 * TERMS[0], TERMS[1], 0.5 * TERMS[2]]
    for correction, terms in (("token", corrected), ("off", TERMS)):
        config = configured(changes | {"training.importance_correction": correction})
        made = made_group(config, sampler=sampler, reference=reference)
        value = loss_of(config, made, output(), kl_coefficient=0.1)
        assert value == pytest.approx((sum(terms) + 0.1 * math.exp(-1.0)) / DIVISOR)


def test_sequence_level_takes_one_ratio_an_answer(configured):
    wide = {"grpo.clip_range_low": 0.5, "grpo.clip_range_high": 0.6}
    config = configured(SHAPE | wide | {"grpo.importance_sampling_level": "sequence"})
    mean = math.sqrt(0.5 * 1.1)
    expected = (2 * 0.5 * mean - 0.5 * 1.5) / DIVISOR
    assert loss_of(config, made_group(config), output()) == pytest.approx(expected, abs=1e-7)


def test_before_the_first_step_the_policy_is_its_own_old(configured):
    """No log-probabilities were scored before: those of this very pass are taken, ratio 1."""
    config = configured(SHAPE)
    made = made_group(config)
    made.old = [torch.empty(0)] * 2
    stats = PassStats()
    value = loss_of(config, made, output(), stats=stats)
    assert value == pytest.approx((0.5 + 0.5 - 0.5) / DIVISOR)
    assert (stats.ratio_max, stats.clip_fraction, stats.drift) == (1.0, 0.0, 0.0)
    assert torch.equal(torch.cat(made.old), torch.tensor(NEW))


def test_statistics_of_a_pass(configured):
    config = configured(SHAPE)
    stats = PassStats()
    loss_of(config, made_group(config), output(), stats=stats)
    assert (stats.tokens, stats.clipped_low, stats.clipped_high) == (3, 1, 1)
    assert stats.clip_fraction == pytest.approx(2 / 3)
    assert stats.ratio_max == pytest.approx(1.5)
    assert stats.surrogate == pytest.approx(sum(TERMS))
    assert stats.entropy == pytest.approx(6.0)
    # k3 of old, which wrote the answers, toward new: δ = new - old = log ratio
    drift = [r - 1 - math.log(r) for r in (0.5, 1.1, 1.5)]
    assert stats.drift == pytest.approx(sum(drift))


def test_the_largest_ratio_may_be_below_one(configured):
    config = configured(SHAPE)
    stats = PassStats()
    lower = [old + math.log(r) for old, r in zip((-1.0, -2.0, -3.0), (0.5, 0.7, 0.6), strict=True)]
    loss_of(config, made_group(config), output(lower), stats=stats)
    assert stats.ratio_max == pytest.approx(0.7)


# -- with a model --------------------------------------------------------------------------------

PROMPT = (72, 105, 44, 32, 87)
LENGTHS = (5, 1, 3, 5)


@pytest.fixture(scope="module")
def decoder(model):
    return Decoder(GgufFile(model), CPU, context=48)


def learner_of(decoder, *, kind="sgd", **changes):
    """A learner whose adapter has moved already."""
    names = select_targets(decoder.architecture, ["auto"])
    adapter = Adapter(decoder.architecture, names, rank=2, alpha=4.0, seed=0, device=CPU)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for _, B in adapter.factors.values():
            B.copy_(torch.randn(B.shape, generator=generator) * 0.05)
    settings = {"micro_batch": 256, "fanout": "auto", "recompute": False, "chunk": 512}
    return Learner(
        decoder,
        adapter,
        PassSettings(**(settings | changes), temperature=1.0),
        OptimizerSettings(kind, 0.0, 1.0),
        on_fallback=lambda _: None,
    )


def sampled(config, *, index=0, scores=(0.0, 1.0, 0.5, 2.0)):
    rng = np.random.default_rng(index)
    answers = [
        answer(*rng.integers(0, 250, n).tolist(), logprobs=(-4.0 - rng.random(n)).tolist())
        for n in LENGTHS
    ]
    return group(config, scores, answers, index=index, prompt=PROMPT)


def nothing(*_):
    pass


def test_the_first_groups_old_comes_from_its_own_forward_and_equals_scoring_it(configured, decoder):
    config = configured()
    groups = [sampled(config, index=i) for i in range(3)]
    learner = learner_of(decoder)
    before = [learner.score(PROMPT, g.live_tokens, learner.adapter) for g in groups]
    score_groups(learner, groups, first=groups[1], with_reference=False, on_progress=nothing)
    assert [len(old) for old in groups[1].old] == [0] * 4
    objective = GrpoObjective(config.grpo, config.training, 0.0)
    order = [groups[1], groups[0], groups[2]]
    run_pass(learner, objective, order, [0.1] * 3, nothing)
    for made, expected in zip(groups, before, strict=True):
        torch.testing.assert_close(made.old, expected, rtol=0, atol=1e-6)


def test_the_reference_is_the_base_without_the_adapter(configured, decoder):
    made, other = sampled(configured()), sampled(configured(), index=1)
    learner = learner_of(decoder)
    seen = []
    score_groups(
        learner,
        [made, other],
        first=made,
        with_reference=True,
        on_progress=lambda *at: seen.append(at),
    )
    for tokens, reference in zip(made.live_tokens, made.reference, strict=True):
        text = [*PROMPT, *tokens.tolist()]
        logprobs = decoder.logits(text, None)[len(PROMPT) - 1 : -1].log_softmax(-1)
        picked = logprobs.gather(1, torch.from_numpy(tokens).long()[:, None])[:, 0]
        torch.testing.assert_close(reference, picked, rtol=0, atol=1e-5)
    assert seen == [(1, 2), (2, 2)]


CUTS = {
    "packed": {},
    "four by one": {"fanout": "off"},
    "two by two": {"fanout": 2},
    "as a small pass allows": {"micro_batch": 9},
    "activations recomputed": {"recompute": True},
    "logits in chunks of two": {"chunk": 2},
}


def gradient(decoder, config, cut):
    learner = learner_of(decoder, **cut)
    made = sampled(config)
    now = learner.score(PROMPT, made.live_tokens, learner.adapter)
    made.old = [old - 0.1 * (-1) ** i for i, old in enumerate(now)]
    made.reference = learner.score(PROMPT, made.live_tokens, None)
    objective = GrpoObjective(config.grpo, config.training, 0.3)
    stats = PassStats()
    loss = learner.accumulate(PROMPT, made.live_tokens, lambda out: objective(made, out, stats))
    return loss, {name: p.grad for name, p in learner.adapter.named_parameters()}


@pytest.mark.parametrize("cut", [pytest.param(c, id=name) for name, c in CUTS.items()])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("correction", ["off", "token"])
def test_loss_and_gradient_do_not_depend_on_the_cut(configured, decoder, cut, level, correction):
    config = configured(
        {
            "grpo.importance_sampling_level": level,
            "training.importance_correction": correction,
            "grpo.kl_coefficient": 0.3,
        }
    )
    loss, expected = gradient(decoder, config, CUTS["packed"])
    other, gradients = gradient(decoder, config, cut)
    assert other == pytest.approx(loss, abs=1e-6)
    for name, value in expected.items():
        assert value.abs().max() > 1e-4
        torch.testing.assert_close(gradients[name], value, rtol=1e-4, atol=1e-6)


def test_a_pass_makes_one_step_for_each_group_at_the_rate_given(configured, decoder):
    """Plain gradient descent with a tiny norm limit: each step moves by rate x limit."""
    config = configured()
    groups = [sampled(config, index=i) for i in range(2)]
    learner = learner_of(decoder)
    learner.max_grad_norm = 1e-3
    score_groups(learner, groups, first=groups[0], with_reference=False, on_progress=nothing)
    states = [learner.adapter.state()]
    objective = GrpoObjective(config.grpo, config.training, 0.0)
    stats = run_pass(
        learner, objective, groups, [4.0, 2.0], lambda: states.append(learner.adapter.state())
    )
    moves = [
        math.sqrt(sum(float((b[n] - a[n]).square().sum()) for n in a))
        for a, b in itertools.pairwise(states)
    ]
    assert moves == pytest.approx([4e-3, 2e-3], rel=1e-3)
    assert (len(stats.norms), stats.tokens, learner.steps) == (2, 2 * sum(LENGTHS), 2)


def clipped(learner, config, count):
    """A group of ten tokens, two an answer, ``count`` of which lie outside the band on the side
    that the clip cuts."""
    rng = np.random.default_rng(0)
    answers = [answer(*rng.integers(0, 250, 2).tolist()) for _ in range(5)]
    made = group(config, [0.0, 0.0, 1.0, 2.0, 3.0], answers, prompt=PROMPT)
    scores = learner.score(PROMPT, made.live_tokens, learner.adapter)
    sign = made.advantages.sign().repeat_interleave(2)
    sign[count:] = 0.0
    made.old = list((torch.cat(scores) - sign * math.log(2.0)).split(2))
    return made


def guarded(decoder, config, count):
    learner = learner_of(decoder)
    made = clipped(learner, config, count)
    objective = GrpoObjective(config.grpo, config.training, 0.0)
    return run_pass(learner, objective, [made], [1e-6], nothing)


def test_the_guard_stops_a_pass_with_more_than_nine_tokens_in_ten_clipped(configured, decoder):
    config = configured({"grpo.group_size": 5})
    with pytest.raises(TrainingError, match=r"100% of the answer tokens .* lower training\.lr"):
        guarded(decoder, config, 10)


def test_nine_in_ten_go_on(configured, decoder):
    stats = guarded(decoder, configured({"grpo.group_size": 5}), 9)
    assert stats.clip_fraction == pytest.approx(0.9)


def test_a_loss_that_is_not_finite_stops_before_the_step(configured, decoder):
    config = configured()
    learner = learner_of(decoder)
    before = learner.adapter.state()
    made = sampled(config)
    made.old = learner.score(PROMPT, made.live_tokens, learner.adapter)
    made.old[2][1] = math.nan
    objective = GrpoObjective(config.grpo, config.training, 0.0)
    with pytest.raises(TrainingError, match=r"the loss is nan after 0 optimizer steps"):
        run_pass(learner, objective, [made], [0.1], nothing)
    after = learner.adapter.state()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert learner.steps == 0


def test_every_pass_has_its_own_order_and_the_seed_decides_it(configured):
    groups = [sampled(configured(), index=i) for i in range(12)]

    def order(*at):
        return [g.index for g in shuffled(groups, *at)]

    assert sorted(order(42, 1, 0)) == list(range(12))
    assert order(42, 1, 0) == order(42, 1, 0)
    orders = [order(42, 1, 0), order(42, 1, 1), order(42, 2, 0), order(43, 1, 0), list(range(12))]
    assert len({tuple(o) for o in orders}) == 5
