"""Log-probabilities against log-softmax, and their hand-written gradient."""

from __future__ import annotations

import torch

from trainer.model.logprobs import score_tokens


def randn(*shape, grad=False):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=grad)


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
