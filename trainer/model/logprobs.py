"""Log-probabilities of chosen tokens without the logits of a whole pass in memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class TokenScores(NamedTuple):
    """``logprobs`` (N,) of the targets in nats, and ``entropy`` (N,) of the full distribution in
    nats, detached unless its gradient was asked for. Both at the temperature that was asked for.
    The entropy is a by-product of the gradient: where none is taken it is NaN."""

    logprobs: Tensor
    entropy: Tensor


def score_tokens(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    temperature: float,
    chunk: int,
    entropy_gradient: bool = False,
) -> TokenScores:
    """Score ``targets`` (N,) under softmax(hidden weightᵀ / temperature).

    hidden (N, width); weight (vocabulary, width), frozen. At most ``chunk`` rows of logits exist
    at a time. The gradient of log p(y) with respect to a hidden state is

        (w_y − Σ_v p_v w_v) / temperature,

    one row of ``width`` numbers, so it is taken while the logits are there, and the backward pass
    needs neither the logits nor a second product with the vocabulary. With ``entropy_gradient``
    that of the entropy H is taken too, by one more product with the vocabulary: with the logits
    z_v = h · w_v / temperature, ∂H/∂z_v = −p_v (log p_v + H) = −p_v (z_v − Σ_u p_u z_u), so

        ∂H/∂h = −(Σ_v p_v z_v w_v − Σ_v p_v z_v · Σ_v p_v w_v) / temperature,

    the covariance of logit and output row under p. It does not change when z is shifted.
    """
    logprobs, entropy = _Scores.apply(  # type: ignore[no-untyped-call]
        hidden, weight, targets, temperature, chunk, entropy_gradient
    )
    return TokenScores(logprobs, entropy)


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: float,
        chunk: int,
        entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        logprobs = hidden.new_empty(len(targets))
        entropy = hidden.new_full((len(targets),), float("nan"))
        jacobian = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        slope = torch.empty_like(hidden) if ctx.needs_input_grad[0] and entropy_gradient else None
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
            torch.sub(weight[y], mean, out=jacobian[part]).div_(temperature)
            if slope is None:
                # Σ p z = h · Σ p w / temperature, so the entropy costs no pass over the vocabulary.
                entropy[part] = total - (h * mean).sum(-1) / temperature
            else:
                spread, slope[part] = _covariance(unnormalised, mass, mean, weight)
                entropy[part] = mass.log() - spread
                slope[part].div_(-temperature)
        ctx.save_for_backward(jacobian, slope)
        if slope is None:
            ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Any, ...]:
        jacobian, slope = ctx.saved_tensors
        gradient = upstream[0][:, None] * jacobian
        if slope is not None:
            gradient.addcmul_(upstream[1][:, None], slope)
        return gradient, None, None, None, None, None


def _covariance(
    unnormalised: Tensor, mass: Tensor, mean: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Under p = unnormalised / mass: the mean (n,) of z − max z, and the covariance (n, width) of
    z and the output rows, whose mean is ``mean``. ``unnormalised`` = exp(z − max z) is used up.

    z − max z is the logarithm of what is at hand, so neither the logits nor a second tensor of
    their size is needed; and 0 · log 0 counts as 0.
    """
    weighed = unnormalised.xlogy_(unnormalised)
    shifted = weighed.sum(dim=-1) / mass
    return shifted, (weighed @ weight).div_(mass[:, None]).sub_(shifted[:, None] * mean)
