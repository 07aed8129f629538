"""Each preparation of an input: its formula, and its hand-written gradient."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from trainer.model.inputs import GeGlu, RmsNorm, SwiGlu
from trainer.model.lora import JoinedLinear, Part


def randn(*shape, grad=False):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=grad)


def apply(linear, raw):
    return linear(raw, None, 0.0)


def alone(prepare, width):
    """A map that only prepares its input."""
    return JoinedLinear(
        prepare, torch.eye(width, dtype=torch.float64), None, (Part("w", 0, width),)
    )


def test_rms_norm_value_and_gradient():
    torch.manual_seed(0)
    raw, weight = randn(3, 6, grad=True), randn(6)
    linear = alone(RmsNorm(weight, 1e-5), 6)
    torch.testing.assert_close(apply(linear, raw), F.rms_norm(raw, (6,), weight, 1e-5))
    assert torch.autograd.gradcheck(lambda t: apply(linear, t), (raw,))


@pytest.mark.parametrize(
    ("gate", "function"),
    [(SwiGlu(), F.silu), (GeGlu(), partial(F.gelu, approximate="tanh"))],
    ids=["silu", "gelu"],
)
def test_gates_value_and_gradient(gate, function):
    torch.manual_seed(0)
    raw = randn(3, 8, grad=True)
    linear = alone(gate, 4)
    torch.testing.assert_close(apply(linear, raw), function(raw[:, :4]) * raw[:, 4:])
    assert torch.autograd.gradcheck(lambda t: apply(linear, t), (raw,))
