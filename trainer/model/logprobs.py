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
    cap: float | None = None,
) -> TokenScores:
    """Score ``targets`` (N,) under softmax(cap(hidden weightᵀ) / temperature), where cap is
    `soft_cap`.

    hidden (N, width); weight (vocabulary, width), frozen. At most ``chunk`` rows of logits exist
    at a time. The gradient of log p(y) with respect to a hidden state is

        (w_y − Σ_v p_v w_v) / temperature,

    one row of ``width`` numbers, so it is taken while the logits are there, and the backward pass
    needs neither the logits nor a second product with the vocabulary. With ``entropy_gradient``
    that of the entropy H is taken too, by one more product with the vocabulary: with the logits
    z_v = h · w_v / temperature, ∂H/∂z_v = −p_v (log p_v + H) = −p_v (z_v − Σ_u p_u z_u), so

        ∂H/∂h = −(Σ_v p_v z_v w_v − Σ_v p_v z_v · Σ_v p_v w_v) / temperature,

    the covariance of logit and output row under p. It does not change when z is shifted. With a
    cap, every w_v in these is multiplied with the cap's slope at logit v, 1 − tanh².
    """
    logprobs, entropy = _Scores.apply(  # type: ignore[no-untyped-call]
        hidden, weight, targets, temperature, chunk, entropy_gradient, cap
    )
    return TokenScores(logprobs, entropy)


def soft_cap(logits: Tensor, cap: float | None) -> Tensor:
    """c · tanh(logits / c), in place, for a ``cap`` c (Gemma 2, arXiv 2408.00118, section 2); the
    logits as they are without one."""
    return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)


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
        cap: float | None,
    ) -> tuple[Tensor, Tensor]:
        logprobs = hidden.new_empty(len(targets))
        entropy = hidden.new_full((len(targets),), float("nan"))
        jacobian = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        slope = torch.empty_like(hidden) if ctx.needs_input_grad[0] and entropy_gradient else None
        for start in range(0, len(targets), chunk):
            part = slice(start, start + chunk)
            h, y = hidden[part], targets[part]
            logits = soft_cap(h @ weight.T, cap)
            steepness = None
            if cap is not None and jacobian is not None:
                steepness = logits.div(cap).square_().neg_().add_(1.0)
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
            own = weight[y]
            if steepness is not None:
                own = own * steepness.gather(1, y[:, None])
            mean = (_times(unnormalised, steepness) @ weight).div_(mass[:, None])
            torch.sub(own, mean, out=jacobian[part]).div_(temperature)
            if slope is not None:
                spread, slope[part] = _covariance(unnormalised, mass, mean, weight, steepness)
                entropy[part] = mass.log() - spread
                slope[part].div_(-temperature)
            elif cap is None:
                # Σ p z = h · Σ p w / temperature, so the entropy costs no pass over the vocabulary.
                entropy[part] = total - (h * mean).sum(-1) / temperature
            else:
                spread = unnormalised.xlogy_(unnormalised).sum(dim=-1) / mass
                entropy[part] = mass.log() - spread
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
        return gradient, None, None, None, None, None, None


def _times(values: Tensor, steepness: Tensor | None) -> Tensor:
    return values if steepness is None else values * steepness


def _covariance(
    unnormalised: Tensor, mass: Tensor, mean: Tensor, weight: Tensor, steepness: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Under p = unnormalised / mass: the mean (n,) of z − max z, and the covariance (n, width) of
    z and the output rows (each times its logit's ``steepness``), whose mean is ``mean``.
    ``unnormalised`` = exp(z − max z) is used up.

    z − max z is the logarithm of what is at hand, so neither the logits nor a second tensor of
    their size is needed; and 0 · log 0 counts as 0.
    """
    weighed = unnormalised.xlogy_(unnormalised)
    shifted = weighed.sum(dim=-1) / mass
    product = _times(weighed, steepness) @ weight
    return shifted, product.div_(mass[:, None]).sub_(shifted[:, None] * mean)
