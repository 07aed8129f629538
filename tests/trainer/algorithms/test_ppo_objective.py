"""PPO's part of `trainer.algorithms.objectives`: the loss of a step."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from small_runs import answer, episode, learner_on

from trainer.algorithms.critic import ProbeCritic, SharedCritic
from trainer.algorithms.episodes import Estimate
from trainer.algorithms.objectives import PassStats, PpoObjective
from trainer.model.learner import PassOutput
from trainer.model.logprobs import TokenScores

# -- by hand --------------------------------------------------------------------------------------

# Two answers, of two tokens and of one, with advantages 2, -1 and 1. Ratios 0.5 (the clip leaves
# what falls although it should rise), 1.1, and 1.5 (held at 1.2).
OLD = [[-1.0, -2.0], [-3.0]]
NEW = [-1.0 + math.log(0.5), -2.0 + math.log(1.1), -3.0 + math.log(1.5)]
TERMS = [-2.0 * 0.5, 1.0 * 1.1, -1.0 * 1.2]
RATIOS = [0.5, 1.1, 1.5]


def output():
    scores = TokenScores(torch.tensor(NEW), torch.full((3,), 2.0))
    return PassOutput(scores, torch.empty(3, 0), (0, 1), torch.tensor([2, 1]))


def by_answer(terms):
    """The sum over the answers of the means over their tokens."""
    return (terms[0] + terms[1]) / 2 + terms[2]


def made_episodes(*, sampler=(-1.0, -2.0, -3.0), reference=None, values=(0.0,) * 3, returns=None):
    advantages, targets = [2.0, -1.0, 1.0], returns or (0.0,) * 3
    made = []
    for index, part in enumerate((slice(0, 2), slice(2, 3))):
        tokens = range(len(OLD[index]))
        own = episode(0.0, answer(*tokens, logprobs=sampler[part]), index=index)
        own.old = [torch.tensor(OLD[index])]
        own.reference = None if reference is None else [torch.tensor(reference[part])]
        own.estimate = Estimate(*(torch.tensor(t[part]) for t in (values, targets, advantages)))
        made.append(own)
    return made


def ppo_loss(config, made, *, out=None, critic=None, stats=None):
    objective = PpoObjective(config.ppo, config.training, critic)
    return objective(made, out or output(), stats or PassStats()).item()


def test_an_answer_weighs_as_much_as_another_however_long(configured_ppo):
    assert ppo_loss(configured_ppo(), made_episodes()) == pytest.approx(by_answer(TERMS))


def test_the_anchor_of_the_rollout_adds_k3_toward_the_policy_that_wrote(configured_ppo):
    config = configured_ppo({"ppo.kl_coefficient": 0.1})
    # δ = old − new = −log ρ
    k3 = [1 / r - 1 + math.log(r) for r in RATIOS]
    stats = PassStats()
    value = ppo_loss(config, made_episodes(), stats=stats)
    assert value == pytest.approx(by_answer(TERMS) + 0.1 * by_answer(k3))
    assert stats.kl == pytest.approx(sum(k3))
    assert stats.surrogate == pytest.approx(sum(TERMS))


def test_the_anchor_of_the_reference_is_measured_and_not_part_of_the_loss(configured_ppo):
    config = configured_ppo({"ppo.kl_anchor": "reference", "ppo.kl_coefficient": 0.1})
    stats = PassStats()
    made = made_episodes(reference=[NEW[0], NEW[1] + 0.5, NEW[2] - 1.0])
    assert ppo_loss(config, made, stats=stats) == pytest.approx(by_answer(TERMS))
    assert stats.kl == pytest.approx(math.exp(0.5) - 1.5 + math.exp(-1.0))


def test_without_a_coefficient_no_divergence_is_measured(configured_ppo):
    stats = PassStats()
    ppo_loss(configured_ppo(), made_episodes(reference=[-9.0] * 3), stats=stats)
    assert stats.kl == 0.0


def test_entropy_is_a_bonus(configured_ppo):
    config = configured_ppo({"ppo.entropy_coefficient": 0.25})
    # 2 nats a token
    value = ppo_loss(config, made_episodes())
    assert value == pytest.approx(by_answer(TERMS) - 0.25 * by_answer([2.0] * 3))


def test_correction_weighs_the_policy_term_alone(configured_ppo):
    changes = {"ppo.kl_coefficient": 0.1, "ppo.entropy_coefficient": 0.25}
    # old / sampler: 2 (capped at 1.5), 1, and 0.5
    made = made_episodes(sampler=[-1.0 - math.log(2.0), -2.0, -3.0 + math.log(2.0)])
    rest = 0.1 * by_answer([1 / r - 1 + math.log(r) for r in RATIOS]) - 0.25 * by_answer([2.0] * 3)
    weighed = [1.5 * TERMS[0], TERMS[1], 0.5 * TERMS[2]]
    for correction, terms in (("token", weighed), ("off", TERMS)):
        training = {"training.importance_correction": correction, "training.importance_cap": 1.5}
        config = configured_ppo(changes | training)
        assert ppo_loss(config, made) == pytest.approx(by_answer(terms) + rest)


def shared_critic(weight, bias):
    critic = SharedCritic(len(weight), device=torch.device("cpu"))
    with torch.no_grad():
        critic.weight.copy_(torch.tensor(weight))
        critic.bias.fill_(bias)
    return critic


def test_a_shared_critics_clipped_loss_is_part_of_it(configured_ppo):
    """V = h + 0.5 of states 0.5, 1 and 3. From 1, 1 and 3 before it has not moved, moved toward its
    return (held at 1.2), and moved away from it."""
    config = configured_ppo({"ppo.critic.kind": "shared", "ppo.critic.value_loss_coefficient": 0.1})
    made = made_episodes(values=(1.0, 1.0, 3.0), returns=(3.0, 3.0, 0.0))
    out = output()._replace(states=torch.tensor([[0.5], [1.0], [3.0]]))
    losses = [0.5 * 2.0**2, 0.5 * 1.8**2, 0.5 * 3.5**2]
    stats = PassStats()
    value = ppo_loss(config, made, out=out, critic=shared_critic([1.0], 0.5), stats=stats)
    assert value == pytest.approx(by_answer(TERMS) + 0.1 * by_answer(losses))
    assert stats.value_loss == pytest.approx(sum(losses))


def test_a_probes_loss_is_not(configured_ppo):
    probe = ProbeCritic(1, lr=0.01, epochs=1, device=torch.device("cpu"))
    made = made_episodes(values=(1.0, 1.0, 3.0), returns=(3.0, 3.0, 0.0))
    stats = PassStats()
    value = ppo_loss(configured_ppo(), made, critic=probe, stats=stats)
    assert value == pytest.approx(by_answer(TERMS))
    assert stats.value_loss == 0.0


def test_before_the_first_step_the_policy_is_its_own_old(configured_ppo):
    made = made_episodes()
    for own in made:
        own.old = [torch.empty(0)]
    stats = PassStats()
    assert ppo_loss(configured_ppo(), made, stats=stats) == pytest.approx(
        by_answer([-2.0, 1.0, -1.0])
    )
    assert (stats.ratio_max, stats.clip_fraction, stats.drift) == (1.0, 0.0, 0.0)
    assert torch.cat([own.old[0] for own in made]).tolist() == pytest.approx(NEW)


def test_statistics_of_a_pass(configured_ppo):
    stats = PassStats()
    ppo_loss(configured_ppo(), made_episodes(), stats=stats)
    assert (stats.tokens, stats.clipped_low, stats.clipped_high) == (3, 0, 1)
    assert stats.ratio_max == pytest.approx(1.5)
    assert stats.entropy == pytest.approx(6.0)
    assert stats.drift == pytest.approx(sum(r - 1 - math.log(r) for r in RATIOS))


# -- with a model  ----------------------------------------------------------------------------

PROMPT = (72, 105, 44, 32, 87)
LENGTHS = (5, 1, 3, 5)
EVERYTHING = {
    "ppo.critic.kind": "shared",
    "ppo.critic.value_loss_coefficient": 0.4,
    "ppo.kl_coefficient": 0.3,
    "ppo.entropy_coefficient": 0.2,
    "training.importance_correction": "token",
}
OWN_PROMPTS = [PROMPT, (72, 105, 9), (3,), PROMPT]


def whole_loss(decoder, config, **cut):
    """A step on four answers to prompts of their own: a function that adds its gradient and returns
    the loss, and what it depends on.

    Log-ratios lie 0.05 or 0.5 from 0, and values 0 or 0.5 from the old ones, so none of them is
    near a bend of the loss (at ±0.2 or thereabouts).
    """
    learner = learner_on(decoder, temperature=0.7, entropy_gradient=True, **cut)
    rng = np.random.default_rng(5)
    weight = (rng.standard_normal(decoder.architecture.width) * 0.1).tolist()
    critic = shared_critic(weight, 0.3)
    objective = PpoObjective(config.ppo, config.training, critic)
    step = []
    for index, (prompt, length) in enumerate(zip(OWN_PROMPTS, LENGTHS, strict=True)):
        ids = rng.integers(0, 250, length).tolist()
        [(now, states)] = learner.score_apart(
            [prompt], [np.array(ids, np.int32)], learner.adapter, keep=torch.float32
        )
        own = answer(*ids, logprobs=(now.numpy() + rng.normal(0, 0.3, length)).tolist())
        made = episode(0.0, own, index=index, prompt=prompt)
        made.old = [now - torch.tensor(rng.choice([-0.5, -0.05, 0.05, 0.5], length)).float()]
        values = critic.values(states).detach()
        made.estimate = Estimate(
            values - torch.tensor(rng.choice([-0.5, 0.0, 0.5], length)).float(),
            values + torch.tensor(rng.choice([-3.0, 2.0], length)).float(),
            torch.tensor(rng.standard_normal(length)).float(),
        )
        step.append(made)
    parameters = dict(learner.adapter.named_parameters())
    parameters |= {"head": critic.weight, "bias": critic.bias}
    return lambda: objective.accumulate(learner, step, PassStats()), parameters


def test_the_whole_loss_against_finite_differences(configured_ppo, decoder):
    """Along each parameter's own gradient, which the slope of the loss there is the length of."""
    loss, parameters = whole_loss(decoder, configured_ppo(EVERYTHING))
    loss()
    gradients = {name: p.grad.clone() for name, p in parameters.items()}
    reach = 4e-3
    for name, p in parameters.items():
        norm = float(gradients[name].norm())
        assert norm > 1e-3, name
        sides = []
        for sign in (1.0, -1.0):
            with torch.no_grad():
                p += sign * reach * gradients[name] / norm
            sides.append(loss())
            with torch.no_grad():
                p -= sign * reach * gradients[name] / norm
        slope = (sides[0] - sides[1]) / (2 * reach)
        assert slope == pytest.approx(norm, rel=5e-3, abs=2e-4), name


CUTS = {
    "one by one": {"micro_batch": 1},
    "as a small pass allows": {"micro_batch": 14},
    "activations recomputed": {"recompute": True},
    "logits in chunks of two": {"chunk": 2},
}


@pytest.mark.parametrize("cut", [pytest.param(c, id=name) for name, c in CUTS.items()])
def test_loss_and_gradient_do_not_depend_on_the_cut(configured_ppo, decoder, cut):
    config = configured_ppo(EVERYTHING)
    whole, expected = whole_loss(decoder, config)
    parts, parameters = whole_loss(decoder, config, **cut)
    assert parts() == pytest.approx(whole(), abs=1e-5)
    for name, p in parameters.items():
        assert expected[name].grad.abs().max() > 1e-4
        torch.testing.assert_close(p.grad, expected[name].grad, rtol=1e-3, atol=1e-5)


def test_a_step_divides_by_its_answers(configured_ppo, decoder):
    """The step's loss is the mean over its answers, so that of two halves is their mean."""
    config = configured_ppo()
    learner = learner_on(decoder)
    objective = PpoObjective(config.ppo, config.training, None)
    rng = np.random.default_rng(1)
    step = []
    for index, length in enumerate(LENGTHS):
        made = episode(0.0, answer(*rng.integers(0, 250, length).tolist()), index=index)
        made.old = [torch.empty(0)]
        zero = torch.zeros(length)
        made.estimate = Estimate(zero, zero, torch.full((length,), float(index + 1)))
        step.append(made)
    # the ratio is 1, so an answer's loss is minus its advantage
    assert objective.accumulate(learner, step, PassStats()) == pytest.approx(-2.5)
    assert objective.accumulate(learner, step[:2], PassStats()) == pytest.approx(-1.5)
    assert objective.accumulate(learner, step[3:], PassStats()) == pytest.approx(-4.0)
