"""The adapted map against its formula, and its hand-written gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from trainer.model.inputs import RmsNorm, Unchanged
from trainer.model.lora import JoinedLinear, Part


def randn(*shape, grad=False):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=grad)


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
