from __future__ import annotations

import math

import pytest
import torch

from trainer.algorithms import losses

F64 = torch.float64


def one(value: float) -> torch.Tensor:
    return torch.tensor([value], dtype=F64)


def surrogate(ratio: float, advantage: float, **options):
    limits = {"low": 0.2, "high": 0.28} | options
    return losses.clipped_surrogate(
        one(math.log(ratio)), one(0.0), one(advantage), torch.tensor([1]), **limits
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "low", "high"),
    [
        (1.0, 2.0, -2.0, False, False),
        (1.1, 2.0, -2.2, False, False),
        (1.5, 2.0, -2.56, False, True),  # held at 1.28 · 2
        (1.5, -2.0, 3.0, False, False),  # the pessimistic side is not clipped
        (0.5, 2.0, -1.0, False, False),
        (0.5, -2.0, 1.6, True, False),  # held at 0.8 · −2
    ],
)
def test_clip_by_hand(ratio, advantage, loss, low, high):
    result = surrogate(ratio, advantage)
    assert result.terms.item() == pytest.approx(loss)
    assert (result.clipped_low.item(), result.clipped_high.item()) == (low, high)


def test_sequence_ratio_is_the_geometric_mean_of_its_answer():
    # two answers, of 2 and 1 tokens: ratios exp((0.2 + 0.4) / 2) and exp(-0.1)
    logprobs = torch.tensor([0.2, 0.4, -0.1], dtype=F64)
    result = losses.clipped_surrogate(
        logprobs,
        torch.zeros(3, dtype=F64),
        torch.tensor([1.0, 1.0, -1.0], dtype=F64),
        torch.tensor([2, 1]),
        low=0.5,
        high=0.5,
        level="sequence",
    )
    expected = [-math.exp(0.3), -math.exp(0.3), math.exp(-0.1)]
    assert result.terms.tolist() == pytest.approx(expected)


def test_sequence_clip_is_one_decision_for_all_tokens_of_an_answer():
    # the mean log-ratio 0.5 is over log 1.28, although the second token alone is under
    result = losses.clipped_surrogate(
        torch.tensor([1.0, 0.0]),
        torch.zeros(2),
        torch.ones(2),
        torch.tensor([2]),
        low=0.2,
        high=0.28,
        level="sequence",
    )
    assert result.clipped_high.tolist() == [True, True]


def trl_dr_grpo(logprobs, old, advantages, lengths, *, low, high, level, divisor):
    """TRL's ``loss_type="dr_grpo"`` written over a padded batch, as its formulas state it."""
    count, longest = len(lengths), int(lengths.max())
    mask = torch.arange(longest)[None] < lengths[:, None]
    padded = torch.zeros(count, longest, dtype=F64)
    log_ratio = padded.masked_scatter(mask, logprobs - old)
    if level == "sequence":
        log_ratio = ((log_ratio * mask).sum(-1) / mask.sum(-1))[:, None]
    ratio = log_ratio.exp()
    sign = advantages[:, None]
    loss = -torch.min(ratio * sign, ratio.clamp(1 - low, 1 + high) * sign)
    return (loss * mask).sum() / divisor


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_equals_trl_on_ragged_answers(level):
    torch.manual_seed(0)
    lengths = torch.tensor([3, 1, 5, 2])
    logprobs = (-torch.rand(11, dtype=F64)).requires_grad_()
    old = -torch.rand(11, dtype=F64)
    advantages = torch.tensor([0.5, -1.0, 0.7, -0.2], dtype=F64)
    options = {"low": 0.2, "high": 0.28, "level": level}
    theirs = trl_dr_grpo(logprobs, old, advantages, lengths, divisor=64.0, **options)
    expected = torch.autograd.grad(theirs, logprobs)[0]
    spread = advantages.repeat_interleave(lengths)
    mine = losses.clipped_surrogate(logprobs, old, spread, lengths, **options).terms.sum() / 64.0
    assert mine.item() == pytest.approx(theirs.item(), abs=1e-12)
    torch.testing.assert_close(torch.autograd.grad(mine, logprobs)[0], expected)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_gradient_against_finite_differences(level):
    torch.manual_seed(1)
    lengths = torch.tensor([2, 3])
    logprobs = (-torch.rand(5, dtype=F64)).requires_grad_()
    old = logprobs.detach() + 0.05 * torch.randn(5, dtype=F64)
    reference = -torch.rand(5, dtype=F64)
    advantages = torch.tensor([1.0, 1.0, -0.5, -0.5, -0.5], dtype=F64)

    def loss(x):
        terms = losses.clipped_surrogate(
            x, old, advantages, lengths, low=0.3, high=0.3, level=level
        ).terms
        return (terms + 0.1 * losses.k3(x, reference)).sum()

    assert torch.autograd.gradcheck(loss, (logprobs,))


def test_k3_by_hand():
    # δ = −1 − (−0.5) = −0.5: e^−0.5 − 1 + 0.5
    assert losses.k3(one(-0.5), one(-1.0)).item() == pytest.approx(math.exp(-0.5) - 0.5)
    assert losses.k3(one(-3.0), one(-3.0)).item() == 0.0


def test_an_absurd_token_gives_a_finite_loss_and_gradient():
    logprobs = torch.tensor([-120.0], requires_grad=True)
    value = losses.k3(logprobs, torch.tensor([-1.0]))
    value.sum().backward()
    assert torch.isfinite(value).all()
    assert torch.isfinite(logprobs.grad).all()


def test_importance_weights_are_capped_and_carry_no_gradient():
    old = torch.tensor([math.log(0.5), math.log(0.9)], requires_grad=True)
    weights = losses.importance_weights(old, torch.log(torch.tensor([0.1, 1.0])), cap=2.0)
    assert weights.tolist() == pytest.approx([2.0, 0.9])  # 5 is cut to the cap
    assert not weights.requires_grad


def test_a_long_answer_weighs_each_token_like_a_short_one():
    """The constant divisor: 10 tokens at +1 and 1,000 at −1 differ a hundredfold in weight."""
    lengths = torch.tensor([10, 1000])
    logprobs = torch.zeros(1010, requires_grad=True)
    advantages = torch.tensor([1.0, -1.0]).repeat_interleave(lengths)
    terms = losses.clipped_surrogate(
        logprobs, torch.zeros(1010), advantages, lengths, low=0.2, high=0.2
    ).terms
    (terms.sum() / (2 * 1024)).backward()
    assert logprobs.grad.abs().unique().tolist() == pytest.approx([1 / 2048])


def test_surrogate_gradient_on_both_sides_of_the_clip():
    """d/dx of −min(ρA, clip(ρ) A) is −ρA where the clip leaves it, and 0 where it does not."""
    ratios = [0.5, 0.5, 0.9, 1.5, 1.5]
    logprobs = torch.tensor([math.log(r) for r in ratios], dtype=F64, requires_grad=True)
    advantages = torch.tensor([2.0, -2.0, -3.0, 2.0, -2.0], dtype=F64)

    def loss(x):
        return losses.clipped_surrogate(
            x, torch.zeros(5, dtype=F64), advantages, torch.tensor([5]), low=0.2, high=0.2
        ).terms

    assert torch.autograd.gradcheck(loss, (logprobs,))
    gradient = torch.autograd.grad(loss(logprobs).sum(), logprobs)[0]
    assert gradient.tolist() == pytest.approx([-1.0, 0.0, 2.7, 0.0, 3.0])


@pytest.mark.parametrize(
    ("value", "old", "target", "loss", "gradient"),
    [
        (1.0, 1.0, 3.0, 2.0, -2.0),  # 0.5 · 2², not moved
        (1.1, 1.0, 3.0, 1.805, -1.9),  # 0.5 · 1.9², inside the range
        (2.0, 1.0, 3.0, 1.62, 0.0),  # toward the return: 0.5 · (1.2 − 3)², held, no gradient
        (0.0, 1.0, 3.0, 4.5, -3.0),  # away from it: 0.5 · 3² and not 0.5 · (0.8 − 3)²
        (5.0, 1.0, 3.0, 2.0, 2.0),  # past it: 0.5 · 2² against 0.5 · 1.8², so not held
        (-2.0, -1.0, -3.0, 1.62, 0.0),  # the mirror of the third
    ],
)
def test_value_loss_by_hand(value, old, target, loss, gradient):
    values = one(value).requires_grad_()
    terms = losses.clipped_value_loss(values, one(old), one(target), clip=0.2)
    assert terms.item() == pytest.approx(loss)
    assert torch.autograd.grad(terms.sum(), values)[0].item() == pytest.approx(gradient)


def test_value_loss_gradient_against_finite_differences():
    torch.manual_seed(2)
    values = torch.randn(40, dtype=F64, requires_grad=True)
    old = values.detach() + 0.3 * torch.randn(40, dtype=F64)
    returns = torch.randn(40, dtype=F64)

    def loss(x):
        return losses.clipped_value_loss(x, old, returns, clip=0.2)

    assert torch.autograd.gradcheck(loss, (values,))
    gradient = torch.autograd.grad(loss(values).sum(), values)[0]
    assert 0 < int((gradient == 0).sum()) < 40  # some held, some not
