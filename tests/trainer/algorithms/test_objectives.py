"""GRPO's part of `trainer.algorithms.objectives`, and what both methods measure."""

from __future__ import annotations

import math

import pytest
import torch
from small_runs import PROMPT, answer, group, learner_on, sampled

from trainer.algorithms.objectives import GrpoObjective, PassStats
from trainer.model.learner import PassOutput
from trainer.model.logprobs import TokenScores

# -- GRPO's loss by hand -------------------------------------------------------------------

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
    return PassOutput(scores, torch.empty(len(logprobs), 0), tuple(answers), torch.tensor(lengths))


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


def nothing(*_):
    pass


CUTS = {
    "packed": {},
    "four by one": {"fanout": "off"},
    "two by two": {"fanout": 2},
    "as a small pass allows": {"micro_batch": 9},
    "activations recomputed": {"recompute": True},
    "logits in chunks of two": {"chunk": 2},
}


def gradient(decoder, config, cut):
    learner = learner_on(decoder, **cut)
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
