"""Log-probabilities of chosen tokens without the logits of a whole pass in memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class TokenScores(NamedTuple):
    """``logprobs`` (N,) of the targets in nats, and ``entropy`` (N,) of the full distribution in
    nats, detached. Both at the temperature that was asked for. The entropy is a by-product of the
    gradient: where none is taken it is NaN."""

    logprobs: Tensor
    entropy: Tensor


def score_tokens(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, temperature: float, chunk: int
) -> TokenScores:
    """Score ``targets`` (N,) under softmax(hidden weightᵀ / temperature).

    hidden (N, width); weight (vocabulary, width), frozen. At most ``chunk`` rows of logits exist
    at a time. The gradient of log p(y) with respect to a hidden state is

        (w_y − Σ_v p_v w_v) / temperature,

    one row of ``width`` numbers, so it is taken while the logits are there, and the backward pass
    needs neither the logits nor a second product with the vocabulary.
    """
    logprobs, entropy = _Scores.apply(hidden, weight, targets, temperature, chunk)  # type: ignore[no-untyped-call]
    return TokenScores(logprobs, entropy)


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, chunk: int
    ) -> tuple[Tensor, Tensor]:
        logprobs = hidden.new_empty(len(targets))
        entropy = hidden.new_full((len(targets),), float("nan"))
        jacobian = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        for start in range(0, len(targets), chunk):
            part = slice(start, start + chunk)
            h, y = hidden[part], targets[part]
            logits = h @ weight.T
            if temperature != 1.0:
                logits.div_(temperature)
            chosen = logits.gather(1, y[:, None])[:, 0]
            # In place: a chunk of logits is the largest tensor there is, and a second one of its
            # size would cost more than the arithmetic.
            largest = logits.amax(dim=-1)
            unnormalised = logits.sub_(largest[:, None]).exp_()
            mass = unnormalised.sum(dim=-1)
            total = largest + mass.log()
            logprobs[part] = chosen - total
            if jacobian is None:
                continue
            mean = (unnormalised @ weight).div_(mass[:, None])
            # Σ p z = h · Σ p w / temperature, so the entropy costs no pass over the vocabulary.
            entropy[part] = total - (h * mean).sum(-1) / temperature
            torch.sub(weight[y], mean, out=jacobian[part]).div_(temperature)
        ctx.save_for_backward(jacobian)
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Any, ...]:
        (jacobian,) = ctx.saved_tensors
        return upstream[0][:, None] * jacobian, None, None, None, None
