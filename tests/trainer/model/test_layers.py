"""Hand-written gradients against finite differences, and each layer against its formula."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from trainer.model import attention
from trainer.model.inputs import RmsNorm, SwiGlu, Unchanged
from trainer.model.logprobs import score_tokens
from trainer.model.lora import JoinedLinear, Part

F64 = torch.float64


def randn(*shape, grad=False):
    return torch.randn(*shape, dtype=F64, requires_grad=grad)


def apply(linear, raw):
    return linear(raw, None, 0.0)


def alone(prepare, width):
    """A map that only prepares its input."""
    return JoinedLinear(prepare, torch.eye(width, dtype=F64), None, (Part("w", 0, width),))


def test_rms_norm_value_and_gradient():
    torch.manual_seed(0)
    raw, weight = randn(3, 6, grad=True), randn(6)
    linear = alone(RmsNorm(weight, 1e-5), 6)
    torch.testing.assert_close(apply(linear, raw), F.rms_norm(raw, (6,), weight, 1e-5))
    assert torch.autograd.gradcheck(lambda t: apply(linear, t), (raw,))


def test_swiglu_value_and_gradient():
    torch.manual_seed(0)
    raw = randn(3, 8, grad=True)
    linear = alone(SwiGlu(), 4)
    torch.testing.assert_close(apply(linear, raw), F.silu(raw[:, :4]) * raw[:, 4:])
    assert torch.autograd.gradcheck(lambda t: apply(linear, t), (raw,))


def test_rotation_turns_neighbouring_pairs():
    # one head of four: pair (1, 0) turned by a right angle, pair (0, 2) by half a turn
    x = torch.tensor([[[1.0, 0.0, 0.0, 2.0]]])
    turn = torch.tensor([[1j, -1.0 + 0j]])
    torch.testing.assert_close(attention.rotate(x, turn), torch.tensor([[[0.0, 1.0, 0.0, -2.0]]]))


def joined_linear(prepare=None):
    torch.manual_seed(0)
    parts = (Part("q", 0, 4), Part("k", 4, 6), Part("v", 6, 9))
    return JoinedLinear(prepare or Unchanged(), randn(9, 5), randn(9), parts)


def test_lora_equals_its_formula_on_the_parts_that_have_factors():
    linear = joined_linear()
    x = randn(7, 5)
    factors = {"q": (randn(2, 5), randn(4, 2)), "v": (randn(3, 5), randn(3, 3))}
    expected = F.linear(x, linear.weight, linear.bias)
    for part in linear.parts:
        if part.name in factors:
            A, B = factors[part.name]
            expected[:, part.start : part.stop] += 1.5 * (x @ A.T) @ B.T
    torch.testing.assert_close(linear(x, factors, 1.5), expected)


@pytest.mark.parametrize("normed", [False, True])
def test_lora_gradient_against_finite_differences(normed):
    linear = joined_linear(RmsNorm(randn(5), 1e-5) if normed else None)
    tensors = (
        randn(3, 5, grad=True),
        randn(2, 5, grad=True),
        randn(4, 2, grad=True),
        randn(2, 5, grad=True),
        randn(3, 2, grad=True),
    )

    def adapted(x, A1, B1, A2, B2):
        return linear(x, {"q": (A1, B1), "v": (A2, B2)}, 1.5)

    assert torch.autograd.gradcheck(adapted, tensors)


def test_without_an_adapter_the_base_is_left_alone():
    linear = joined_linear()
    x = randn(2, 5)
    expected = F.linear(x, linear.weight, linear.bias)
    assert torch.equal(linear(x, None, 0.0), expected)
    assert torch.equal(linear(x, {"other": (randn(1, 5), randn(4, 1))}, 1.0), expected)


def test_scores_equal_log_softmax_at_the_temperature():
    torch.manual_seed(0)
    hidden, weight = randn(5, 4, grad=True), randn(11, 4)
    targets = torch.tensor([0, 3, 10, 3, 7])
    scores = score_tokens(hidden, weight, targets, temperature=0.6, chunk=2)
    logprobs = (hidden @ weight.T / 0.6).log_softmax(-1)
    torch.testing.assert_close(scores.logprobs, logprobs.gather(1, targets[:, None])[:, 0])
    torch.testing.assert_close(scores.entropy, -(logprobs.exp() * logprobs).sum(-1).detach())


def test_score_gradient_against_finite_differences():
    torch.manual_seed(0)
    hidden, weight = randn(5, 4, grad=True), randn(11, 4)
    targets = torch.tensor([0, 3, 10, 3, 7])

    def logprobs(h):
        return score_tokens(h, weight, targets, temperature=1.7, chunk=3).logprobs

    assert torch.autograd.gradcheck(logprobs, (hidden,))
