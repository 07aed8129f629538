from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from small_runs import answer, episode, learner_on

from trainer.algorithms.episodes import estimate_advantages, score_episodes
from trainer.config.ppo import CriticSection
from trainer.errors import RewardError

DISCOUNTED = CriticSection(gamma=0.5, gae_lambda=0.5)
PLAIN = CriticSection(gae_lambda=1.0)


def batch(*scored):
    """Answers of (reward, length)."""
    made = [
        episode(reward, answer(*range(length)), index=i)
        for i, (reward, length) in enumerate(scored)
    ]
    for own in made:
        own.old = [torch.empty(0)]
    return made


def advantages(episodes):
    return torch.cat([own.estimate.advantages for own in episodes]).tolist()


def whitened(values):
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1) + 1e-8)
    return [(v - mean) / deviation for v in values]


# -- forming -------------------------------------------------------------------------------------


def test_an_episode_is_a_group_of_one_answer():
    made = episode(0.75, answer(7, 8, 9), index=3)
    assert (made.index, made.rewards.tolist(), made.members) == (3, [0.75], [0])
    assert made.tokens.tolist() == [7, 8, 9]
    assert not made.trainable
    assert made.features is None


@pytest.mark.parametrize("reward", [1e39, -1e39])
def test_a_reward_that_training_cannot_hold_is_refused(reward):
    words = rf"a reward of {reward:g} is too large to train on \(prompt line 6\)".replace(
        "+", r"\+"
    )
    with pytest.raises(RewardError, match=words):
        episode(reward, answer(1), index=5)


# -- advantages ----------------------------------------------------------------------------------


def test_a_critics_batch_by_hand():
    """γ = λ = 0.5. First answer, V = 0.2 0.4 0.6, R = 1: δ = 0, −0.1, 0.4 and A = 0, 0, 0.4.
    Second, of one token, V = 0.5, R = −1: A = −1.5, whatever stands beside it."""
    made = batch((1.0, 3), (-1.0, 1))
    values = torch.tensor([0.2, 0.4, 0.6, 0.5])
    estimate_advantages(made, values, DISCOUNTED, kl_penalty=0.0)
    first, second = (own.estimate for own in made)
    assert first.values.tolist() == pytest.approx([0.2, 0.4, 0.6])
    assert first.returns.tolist() == pytest.approx([0.2, 0.4, 1.0])
    assert (second.values.tolist(), second.returns.tolist()) == ([0.5], [-1.0])
    white = whitened([0.0, 0.0, 0.4, -1.5])
    assert advantages(made) == pytest.approx(white, abs=1e-6)
    assert all(own.trainable for own in made)


def test_without_a_critic_every_token_has_its_answers_whitened_reward():
    made = batch((1.0, 2), (4.0, 1), (1.0, 3))
    estimate_advantages(made, None, DISCOUNTED, kl_penalty=0.0)
    a, b, *_ = white = whitened([1.0, 1.0, 4.0, 1.0, 1.0, 1.0])
    assert advantages(made) == pytest.approx(white, abs=1e-6)
    assert a == b
    assert made[0].estimate.values.tolist() == [0.0, 0.0]
    assert made[2].estimate.returns.tolist() == [1.0, 1.0, 1.0]


def test_a_zero_critic_without_discount_is_none():
    scored = (0.3, 4), (1.7, 2), (-0.4, 5)
    zero, none = batch(*scored), batch(*scored)
    estimate_advantages(zero, torch.zeros(11), PLAIN, kl_penalty=0.0)
    estimate_advantages(none, None, PLAIN, kl_penalty=0.0)
    assert advantages(zero) == advantages(none)


@pytest.mark.parametrize("critic", [True, False])
def test_the_penalty_is_taken_off_token_by_token(critic):
    """β = 0.1 and log-ratios 1, −2 | 3: rewards −0.1, 1.2 | 0.2, which summed from behind are 1.1,
    1.2 | 0.2."""
    made = batch((1.0, 2), (0.5, 1))
    made[0].old, made[0].reference = [torch.tensor([-1.0, -4.0])], [torch.tensor([-2.0, -2.0])]
    made[1].old, made[1].reference = [torch.tensor([-1.0])], [torch.tensor([-4.0])]
    values = torch.zeros(3) if critic else None
    estimate_advantages(made, values, PLAIN, kl_penalty=0.1)
    assert made[0].estimate.returns.tolist() == pytest.approx([1.1, 1.2])
    assert made[1].estimate.returns.tolist() == pytest.approx([0.2])
    assert advantages(made) == pytest.approx(whitened([1.1, 1.2, 0.2]), abs=1e-6)


def test_without_a_coefficient_the_reference_is_not_asked_for():
    made = batch((1.0, 2), (0.5, 1))
    estimate_advantages(made, None, PLAIN, kl_penalty=0.0)
    assert made[0].estimate.returns.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("critic", [PLAIN, DISCOUNTED], ids=["plain", "discounted"])
@pytest.mark.parametrize("values", [None, [0.0] * 4, [0.5, 1.0, 1.5, -2.0]])
def test_equal_rewards_are_no_signal_whatever_the_critic_says(values, critic):
    made = batch((2.0, 3), (2.0, 1))
    given = None if values is None else torch.tensor(values)
    estimate_advantages(made, given, critic, kl_penalty=0.0)
    assert not any(own.trainable for own in made)
    assert advantages(made) == [0.0] * 4
    [record] = made[0].record([()]).trajectories
    assert (record.trained, record.skip_reason, record.advantage) == (False, "zero_signal", 0.0)


def test_what_a_critic_is_fitted_to_is_there_without_a_signal():
    made = batch((2.0, 3), (2.0, 1))
    estimate_advantages(made, torch.zeros(4), PLAIN, kl_penalty=0.0)
    assert torch.cat([own.estimate.returns for own in made]).tolist() == [2.0] * 4


@pytest.mark.parametrize("second", [2.0, 2.0 + 1e-12])
@pytest.mark.parametrize("values", [None, torch.tensor([1.9, 2.1, 2.0])])
def test_equal_rewards_are_no_signal_whatever_the_penalty_and_the_critic(second, values):
    """Whitening would make the size of a signal of a penalty of any size, and of a critic's
    errors."""
    made = batch((2.0, 2), (second, 1))
    for own in made:
        own.old = [torch.full((len(own.tokens),), -1.0)]
        own.reference = [torch.full((len(own.tokens),), -1.0 - own.index)]
    estimate_advantages(made, values, PLAIN, kl_penalty=0.5)
    assert advantages(made) == [0.0, 0.0, 0.0]
    assert not any(own.trainable for own in made)


def test_a_single_answer_is_a_signal_where_a_critic_tells_its_tokens_apart():
    made = batch((1.0, 3))
    estimate_advantages(made, torch.tensor([0.2, 0.4, 0.6]), DISCOUNTED, kl_penalty=0.0)
    assert made[0].trainable
    # not whitened: beside nothing, its level is what it says
    assert advantages(made) == pytest.approx([0.0, 0.0, 0.4], abs=1e-6)


def test_large_rewards_stay_finite():
    made = batch((1e19, 2), (-1e19, 2))
    estimate_advantages(made, None, PLAIN, kl_penalty=0.0)
    # four tokens at ±1e19: the unbiased deviation is √(4/3) · 1e19
    assert advantages(made) == pytest.approx([0.75**0.5] * 2 + [-(0.75**0.5)] * 2)


def test_the_record_shows_the_mean_of_the_tokens_advantages():
    made = batch((1.0, 3), (-1.0, 1))
    estimate_advantages(made, torch.tensor([0.2, 0.4, 0.6, 0.5]), DISCOUNTED, kl_penalty=0.0)
    white = whitened([0.0, 0.0, 0.4, -1.5])
    [shown] = made[0].record([("verbose",)]).trajectories
    assert shown.advantage == pytest.approx(sum(white[:3]) / 3)
    assert (shown.trained, shown.skip_reason, shown.audit) == (True, None, ("verbose",))
    assert (shown.reward, shown.reward_raw) == (1.0, 1.0)


# -- scoring -------------------------------------------------------------------------------------

PROMPTS = [(72, 105, 44), (72, 105), (9,)]


@pytest.fixture
def drawn():
    rng = np.random.default_rng(4)
    return [
        episode(0.0, answer(*rng.integers(0, 250, n).tolist()), index=i, prompt=prompt)
        for i, (n, prompt) in enumerate(zip((3, 1, 4), PROMPTS, strict=True))
    ]


def alone(learner, own, adapter):
    [scored] = learner.score_apart([own.prompt.tokens], [own.tokens], adapter, keep=torch.float32)
    return scored


def score(learner, episodes, **changes):
    seen = []
    options = {"unscored": (), "features": None, "with_reference": False} | changes
    score_episodes(learner, episodes, **options, on_progress=lambda *at: seen.append(at))
    return seen


def test_scoring_keeps_log_probabilities_and_states(decoder, drawn):
    learner = learner_on(decoder)
    assert score(learner, drawn, features=torch.float32) == [(3, 3)]
    for own in drawn:
        logprobs, states = alone(learner, own, learner.adapter)
        torch.testing.assert_close(own.old, [logprobs], rtol=0, atol=1e-5)
        torch.testing.assert_close(own.features, states, rtol=0, atol=1e-5)
        assert own.reference is None


def test_the_reference_is_the_base_alone(decoder, drawn):
    learner = learner_on(decoder)
    assert score(learner, drawn, with_reference=True)[-1] == (6, 6)
    for own in drawn:
        logprobs, _ = alone(learner, own, None)
        torch.testing.assert_close(own.reference, [logprobs], rtol=0, atol=1e-5)
        assert (own.reference[0] - own.old[0]).abs().max() > 1e-3
        assert own.features is None


def test_the_answers_of_the_first_step_are_left_to_it(decoder, drawn):
    score(learner_on(decoder), drawn, unscored=[1])
    assert [len(own.old[0]) for own in drawn] == [3, 0, 4]


def test_where_the_first_step_takes_all_nothing_is_scored(decoder, drawn):
    score(learner_on(decoder), drawn, unscored=[0, 1, 2])
    assert [len(own.old[0]) for own in drawn] == [0, 0, 0]


@pytest.mark.parametrize(("kind", "error"), [(torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
def test_narrow_features_take_half_the_bytes(decoder, drawn, kind, error):
    learner = learner_on(decoder)
    score(learner, drawn, features=torch.float32)
    wide = [own.features for own in drawn]
    score(learner, drawn, features=kind)
    for own, exact in zip(drawn, wide, strict=True):
        assert own.features.dtype == kind
        assert 2 * own.features.nbytes == exact.nbytes
        off = (own.features.float() - exact).abs().max() / exact.abs().max()
        assert 0 < off < error
