"""Log-probabilities against log-softmax, and their hand-written gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.model.logprobs import score_tokens

LN2 = math.log(2.0)


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


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.3])
def test_entropy_by_hand(temperature):
    """Logits ln 2 and 0, so p = 2/3, 1/3 and H = ln 3 − 2/3 · ln 2. One hidden number h with rows
    w = ln 2, 0 and z = h w / T, at h = T: dH/dh = −Cov(z, w) / T = −(2/9) ln²2 / T."""
    hidden = torch.tensor([[temperature]], requires_grad=True)
    weight = torch.tensor([[LN2], [0.0]])
    scores = score_tokens(
        hidden, weight, torch.tensor([0]), temperature=temperature, chunk=1, entropy_gradient=True
    )
    assert scores.entropy.item() == pytest.approx(math.log(3) - 2 / 3 * LN2, abs=1e-6)
    scores.entropy.sum().backward()
    assert hidden.grad.item() == pytest.approx(-2 / 9 * LN2**2 / temperature, abs=1e-6)


@pytest.mark.parametrize("chunk", [1, 3, 7])
@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_entropy_and_its_gradient_equal_torchs_softmax(temperature, chunk):
    torch.manual_seed(0)
    hidden, weight = randn(7, 4, grad=True), randn(11, 4)
    targets, upstream = torch.randint(0, 11, (7,)), randn(7, 2)
    mine = score_tokens(
        hidden, weight, targets, temperature=temperature, chunk=chunk, entropy_gradient=True
    )
    logprobs = (hidden @ weight.T / temperature).log_softmax(-1)
    theirs = logprobs.gather(1, targets[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)
    gradients = []
    for chosen, entropy in (mine, theirs):
        torch.testing.assert_close(entropy, theirs[1])
        loss = (chosen * upstream[:, 0] + entropy * upstream[:, 1]).sum()
        gradients.append(torch.autograd.grad(loss, hidden)[0])
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("asked", [False, True])
def test_a_soft_cap_comes_before_the_temperature(asked):
    """Scores, entropy and their gradients of 2 · tanh(z / 2) / T."""
    torch.manual_seed(0)
    hidden, weight = randn(7, 4, grad=True), randn(11, 4)
    targets, upstream = torch.randint(0, 11, (7,)), randn(7, 2)
    mine = score_tokens(
        hidden, weight, targets, temperature=0.7, chunk=3, entropy_gradient=asked, cap=2.0
    )
    logprobs = (2 * torch.tanh(hidden @ weight.T / 2) / 0.7).log_softmax(-1)
    theirs = logprobs.gather(1, targets[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)
    gradients = []
    for chosen, entropy in (mine, theirs):
        torch.testing.assert_close(chosen, theirs[0])
        torch.testing.assert_close(entropy, theirs[1], check_stride=False)
        loss = (chosen * upstream[:, 0]).sum() + asked * (entropy * upstream[:, 1]).sum()
        gradients.append(torch.autograd.grad(loss, hidden)[0])
    torch.testing.assert_close(*gradients)


def test_entropy_gradient_against_finite_differences():
    torch.manual_seed(0)
    hidden, weight = randn(5, 4, grad=True), randn(11, 4)
    targets = torch.tensor([0, 3, 10, 3, 7])

    def both(h):
        return score_tokens(
            h, weight, targets, temperature=1.7, chunk=3, entropy_gradient=True
        )  # log-probability and entropy, each with its own gradient

    assert torch.autograd.gradcheck(both, (hidden,))


def test_entropy_of_huge_logits_is_exact():
    """Rows of ±1 at a hidden state of 1e4: what lies 1e4 below the largest has p = 0 in F32 and
    counts nothing, not a NaN. One token at the top has no entropy; two that tie have ln 2."""
    hidden = torch.tensor([[1e4, 0.0], [0.0, 1e4]], requires_grad=True)
    weight = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [0.0, -1.0]])
    scores = score_tokens(
        hidden, weight, torch.tensor([2, 0]), temperature=1.0, chunk=2, entropy_gradient=True
    )
    assert scores.logprobs.tolist() == pytest.approx([-1e4, -LN2], abs=1e-3)  # F32 at 1e4
    assert scores.entropy.tolist() == pytest.approx([0.0, LN2], abs=1e-7)
    # neither moves with a small change of all logits: z is certain, or equal where p is not 0
    gradient = torch.autograd.grad(scores.entropy.sum(), hidden)[0]
    assert gradient.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_entropy_in_f32_over_a_wide_vocabulary():
    torch.manual_seed(0)
    hidden, weight = torch.randn(6, 32), torch.randn(5000, 32)
    exact = hidden.double().requires_grad_()
    p = (exact @ weight.double().T).log_softmax(-1)
    entropy = -(p.exp() * p).sum(-1)
    slope = torch.autograd.grad(entropy.sum(), exact)[0]
    hidden.requires_grad_()
    scores = score_tokens(
        hidden, weight, torch.zeros(6).long(), temperature=1.0, chunk=4, entropy_gradient=True
    )
    torch.testing.assert_close(scores.entropy.double(), entropy, rtol=1e-5, atol=1e-5)
    mine = torch.autograd.grad(scores.entropy.sum(), hidden)[0]
    torch.testing.assert_close(mine.double(), slope, rtol=1e-4, atol=1e-5)


def test_without_being_asked_the_entropy_is_detached_and_the_scores_are_the_same():
    torch.manual_seed(0)
    hidden, weight = randn(5, 4, grad=True), randn(11, 4)
    targets = torch.tensor([0, 3, 10, 3, 7])
    plain = score_tokens(hidden, weight, targets, temperature=0.7, chunk=2)
    asked = score_tokens(hidden, weight, targets, temperature=0.7, chunk=2, entropy_gradient=True)
    assert not plain.entropy.requires_grad
    assert asked.entropy.requires_grad
    assert torch.equal(plain.logprobs, asked.logprobs)
    torch.testing.assert_close(plain.entropy, asked.entropy.detach())
    gradients = [torch.autograd.grad(s.logprobs.sum(), hidden)[0] for s in (plain, asked)]
    assert torch.equal(*gradients)


def test_entropy_is_unknown_where_no_gradient_is_taken():
    with torch.no_grad():
        scores = score_tokens(
            randn(2, 3), randn(5, 3), torch.tensor([0, 1]), temperature=1.0, chunk=2
        )
    assert scores.entropy.isnan().all()


class Ledger(TorchDispatchMode):
    """Counts products of matrices, and the tensors of ``numel`` numbers that operations allocate
    (what works in place, or returns a view, allocates none)."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        self.numel, self.products, self.allocated = numel, 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        self.products += function is torch.ops.aten.mm.default
        if isinstance(out, torch.Tensor) and out.numel() == self.numel:
            storages = [x.untyped_storage() for x in args if isinstance(x, torch.Tensor)]
            self.allocated += all(
                out.untyped_storage().data_ptr() != s.data_ptr() for s in storages
            )
        return out


@pytest.mark.parametrize(("asked", "products"), [(False, 2), (True, 3)])
def test_one_tensor_of_logits_and_one_more_product_where_asked(asked, products):
    """Two chunks of 3 rows: each allocates its 3 × 101 logits once and works in them from there."""
    torch.manual_seed(0)
    hidden, weight = randn(6, 4, grad=True), randn(101, 4)
    with Ledger(3 * 101) as ledger:
        scores = score_tokens(
            hidden,
            weight,
            torch.arange(6),
            temperature=0.7,
            chunk=3,
            entropy_gradient=asked,
        )
        scores.logprobs.sum().backward()
    assert (ledger.allocated, ledger.products) == (2, 2 * products)
