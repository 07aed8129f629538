from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.algorithms.advantages import group_advantages
from trainer.algorithms.gae import (
    Estimates,
    explained_variance,
    generalised_advantages,
    token_rewards,
    whiten,
)


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def f32(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def estimate(
    rewards: list[float], values: list[float], lengths: list[int], gamma: float, gae_lambda: float
) -> Estimates:
    return generalised_advantages(
        f32(*rewards), f32(*values), torch.tensor(lengths), gamma=gamma, gae_lambda=gae_lambda
    )


def test_the_reward_stands_at_the_last_token_of_its_answer():
    # answers of 2, 1 and 3 tokens
    spread = token_rewards(f64(0.5, -1.0, 2.0), torch.tensor([2, 1, 3]), None)
    assert spread.tolist() == [0.0, 0.5, -1.0, 0.0, 0.0, 2.0]
    assert spread.dtype == torch.float32


def test_the_penalty_is_taken_off_at_every_token_the_last_included():
    # log-ratios 1, −2 | 3 with β = 0.1
    spread = token_rewards(f64(1.0, 0.5), torch.tensor([2, 1]), 0.1 * f32(1.0, -2.0, 3.0))
    assert spread.tolist() == pytest.approx([-0.1, 1.0 + 0.2, 0.5 - 0.3])


def test_gae_by_hand():
    """γ = 0.5, λ = 0.5, so γλ = 0.25.

    First answer, r = 0 0 1, V = 0.2 0.4 0.6:
      δ = 0 + 0.2 − 0.2, 0 + 0.3 − 0.4, 1 + 0 − 0.6 = 0, −0.1, 0.4
      A = 0 + 0.25 · 0, −0.1 + 0.25 · 0.4, 0.4      = 0, 0, 0.4
    Second, of one token, r = −1, V = 0.5: δ = A = −1.5, whatever follows it in the batch.
    Third, r = 2 3, V = 1 −1: δ = 2 − 0.5 − 1, 3 + 1 = 0.5, 4 and A = 0.5 + 0.25 · 4, 4 = 1.5, 4.
    """
    advantages, returns = estimate(
        [0.0, 0.0, 1.0, -1.0, 2.0, 3.0], [0.2, 0.4, 0.6, 0.5, 1.0, -1.0], [3, 1, 2], 0.5, 0.5
    )
    assert advantages.tolist() == pytest.approx([0.0, 0.0, 0.4, -1.5, 1.5, 4.0], abs=1e-6)
    assert returns.tolist() == pytest.approx([0.2, 0.4, 1.0, -1.0, 2.5, 3.0], abs=1e-6)


def test_lambda_zero_is_the_error_of_one_step():
    # δ = 1 + 0.9 · 3 − 2, 4 − 3 | 5 − 6
    advantages, _ = estimate([1.0, 4.0, 5.0], [2.0, 3.0, 6.0], [2, 1], 0.9, 0.0)
    assert advantages.tolist() == pytest.approx([1.7, 1.0, -1.0])


def test_gamma_zero_looks_at_the_token_alone():
    # A = r − V for every λ, and the return is the reward
    advantages, returns = estimate([1.0, 4.0, 5.0], [2.0, 3.0, 6.0], [2, 1], 0.0, 1.0)
    assert advantages.tolist() == [-1.0, 1.0, -1.0]
    assert returns.tolist() == [1.0, 4.0, 5.0]


def test_without_discount_the_return_is_the_reward_to_go_whatever_the_critic_says():
    # 1 + 2 + 3, 2 + 3, 3 | −1
    _, returns = estimate([1.0, 2.0, 3.0, -1.0], [0.3, -7.0, 5.0, 2.0], [3, 1], 1.0, 1.0)
    assert returns.tolist() == [6.0, 5.0, 3.0, -1.0]


def test_with_a_zero_critic_every_token_has_exactly_the_reward_of_its_answer():
    """What a run without a critic uses, bit for bit; and whitened, the same again."""
    rewards, lengths = f64(0.1, 0.7, -0.3), torch.tensor([4, 1, 9])
    advantages, returns = generalised_advantages(
        token_rewards(rewards, lengths, None), torch.zeros(14), lengths, gamma=1.0, gae_lambda=1.0
    )
    without_critic = rewards.float().repeat_interleave(lengths)
    assert torch.equal(advantages, without_critic)
    assert torch.equal(returns, without_critic)
    assert torch.equal(whiten(advantages), whiten(without_critic))


def test_estimates_carry_no_gradient():
    values = torch.zeros(3, requires_grad=True)
    lengths = torch.tensor([2, 1])
    result = generalised_advantages(torch.ones(3), values, lengths, gamma=1.0, gae_lambda=0.9)
    assert not result.advantages.requires_grad
    assert not result.returns.requires_grad


NUMBER = st.floats(-10, 10, width=32)
SHARE = st.floats(0, 1)


@st.composite
def batches(draw: st.DrawFn) -> list[list[tuple[float, float]]]:
    """Answers as lists of (reward, value)."""
    answer = st.lists(st.tuples(NUMBER, NUMBER), min_size=1, max_size=6)
    return draw(st.lists(answer, min_size=1, max_size=5))


def flat(batch: list[list[tuple[float, float]]]) -> tuple[list[float], list[float], list[int]]:
    tokens = [token for answer in batch for token in answer]
    return [r for r, _ in tokens], [v for _, v in tokens], [len(answer) for answer in batch]


@given(batches(), SHARE, SHARE)
def test_gae_is_the_discounted_sum_of_later_errors(batch, gamma, gae_lambda):
    """A_t = Σ_l (γλ)^l δ_{t+l}, eq. 16 as it is written, answer by answer in F64."""
    expected = []
    for answer in batch:
        ends = [v for _, v in answer[1:]] + [0.0]
        errors = [r + gamma * after - v for (r, v), after in zip(answer, ends, strict=True)]
        expected += [
            sum((gamma * gae_lambda) ** later * e for later, e in enumerate(errors[t:]))
            for t in range(len(errors))
        ]
    advantages, returns = estimate(*flat(batch), gamma, gae_lambda)
    assert advantages.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-6)
    plus = [a + v for a, v in zip(expected, flat(batch)[1], strict=True)]
    assert returns.tolist() == pytest.approx(plus, rel=1e-6, abs=1e-6)


@given(batches(), SHARE, SHARE, st.randoms(use_true_random=False))
def test_an_answer_does_not_depend_on_its_neighbours(batch, gamma, gae_lambda, random):
    order = list(range(len(batch)))
    random.shuffle(order)
    lengths = [len(answer) for answer in batch]
    parts = estimate(*flat(batch), gamma, gae_lambda).advantages.split(lengths)
    moved = estimate(*flat([batch[i] for i in order]), gamma, gae_lambda).advantages
    assert torch.equal(moved, torch.cat([parts[i] for i in order]))


def test_whiten_by_hand():
    # mean 2, unbiased variance (1 + 0 + 1) / 2 = 1
    assert whiten(f32(1.0, 2.0, 3.0)).tolist() == pytest.approx([-1.0, 0.0, 1.0], abs=1e-6)
    # mean 0, variance (9 + 9) / 1 = 18
    assert whiten(f32(3.0, -3.0)).tolist() == pytest.approx([0.5**0.5, -(0.5**0.5)])
    # variance 2e-8, to which the epsilon adds a half: 1e-4 / sqrt(3e-8)
    small = whiten(f32(1e-4, -1e-4)).tolist()
    assert small == pytest.approx([1 / math.sqrt(3), -1 / math.sqrt(3)])


@pytest.mark.parametrize("value", [0.0, 0.1, -1e30])
def test_whiten_gives_exact_zeros_where_nothing_differs(value):
    assert whiten(f32(value)).tolist() == [0.0]
    assert whiten(f32(*[value] * 7)).tolist() == [0.0] * 7
    # in F64 the mean of equal numbers may round, and a rest of 1e-17 be left
    assert whiten(f64(*[value] * 7)).tolist() == [0.0] * 7


@given(st.lists(st.floats(-1000, 1000, width=32), min_size=2, max_size=40))
def test_whitened_tokens_have_mean_zero_and_variance_at_most_one(values):
    white = whiten(f32(*values)).double()
    spread = f64(*values).var()
    assert white.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert white.var().item() == pytest.approx((spread / (spread + 1e-8)).item(), abs=1e-5)


def test_whitening_equals_a_groups_baseline_up_to_scale():
    rewards = f64(0.0, 1.0, 1.0, 0.5)
    centred = group_advantages(rewards, torch.ones(4, dtype=torch.bool), "mean")
    white = whiten(rewards.float())
    torch.testing.assert_close(white * rewards.std().float(), centred)


def test_explained_variance_by_hand():
    returns = f32(1.0, 2.0, 3.0)
    assert explained_variance(returns, returns) == 1.0
    # a constant explains nothing, however far off it is
    assert explained_variance(f32(9.0, 9.0, 9.0), returns) == pytest.approx(0.0)
    # errors 0.5, 0, −0.5: variance 0.25 of 1
    assert explained_variance(f32(0.5, 2.0, 3.5), returns) == pytest.approx(0.75)
    # errors −2, 0, 2: variance 4 of 1
    assert explained_variance(f32(3.0, 2.0, 1.0), returns) == pytest.approx(-3.0)


def test_explained_variance_is_not_a_number_without_variance():
    assert math.isnan(explained_variance(f32(1.0, 2.0), f32(0.7, 0.7)))
    assert math.isnan(explained_variance(f32(1.0), f32(2.0)))


def test_equal_rewards_leave_equal_returns_however_long_the_answers():
    """With γ = λ = 1 every return is the reward. Summed in F32, (0.1 − V) + V over 3000 tokens
    would leave noise, of which a critic would explain minus millions."""
    torch.manual_seed(0)
    values, lengths = torch.randn(3050), torch.tensor([3000, 50])
    rewards = token_rewards(f64(0.1, 0.1), lengths, None)
    _, returns = generalised_advantages(rewards, values, lengths, gamma=1.0, gae_lambda=1.0)
    assert torch.equal(returns, torch.full((3050,), 0.1))
    assert math.isnan(explained_variance(values, returns))
