"""A choice of experts by hand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from small_runs import adapter_on

from trainer.gguf.file import GgufFile
from trainer.model.decoder import Decoder

CPU = torch.device("cpu")
COUNT, USED, WIDTH, INNER = 6, 2, 64, 32


@pytest.fixture(scope="module")
def decoder(random_model):
    path = random_model("qwen3moe", layers=1, experts=(COUNT, USED, INNER))
    return Decoder(GgufFile(path), CPU, context=16)


@pytest.fixture(scope="module")
def file(decoder, random_model):
    return GgufFile(random_model("qwen3moe", layers=1, experts=(COUNT, USED, INNER)))


def read(file, part):
    return torch.from_numpy(file.read(f"blk.0.{part}.weight"))


def by_hand(file, row, adapter):
    """One row through the two experts with the largest router logits."""
    x = F.rms_norm(row, (WIDTH,), read(file, "ffn_norm"), 1e-5)
    logits = read(file, "ffn_gate_inp") @ x
    best = logits.argsort(descending=True)[:USED]
    shares = logits[best].softmax(0)

    def map_of(part, expert, value):
        weight = read(file, part)[expert]
        if adapter:
            A, B = adapter.factors[f"blk.0.{part}.weight"]
            weight = weight + adapter.scale * B[expert] @ A[expert]
        return weight @ value

    out = torch.zeros(WIDTH)
    for share, e in zip(shares, best.tolist(), strict=True):
        inner = F.silu(map_of("ffn_gate_exps", e, x)) * map_of("ffn_up_exps", e, x)
        out += share * map_of("ffn_down_exps", e, inner)
    return out


@pytest.mark.parametrize("adapted", [False, True])
def test_each_row_goes_through_its_own_best_experts(decoder, file, adapted):
    torch.manual_seed(0)
    adapter = adapter_on(decoder) if adapted else None
    x = torch.randn(5, WIDTH)
    factors = (adapter.factors, adapter.scale) if adapter else (None, 0.0)
    with torch.no_grad():
        out = decoder.layers[0].feed_forward(x, *factors)
        expected = torch.stack([by_hand(file, row, adapter) for row in x])
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


def test_an_expert_that_nobody_chooses_gets_a_gradient_of_zero(decoder):
    """And not none, which would count as a factor that training leaves out."""
    adapter = adapter_on(decoder)
    x = torch.randn(1, WIDTH, generator=torch.Generator().manual_seed(0))
    decoder.layers[0].feed_forward(x, adapter.factors, adapter.scale).sum().backward()
    for part in ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"):
        for factor in adapter.factors[f"blk.0.{part}.weight"]:
            used = factor.grad.flatten(1).norm(dim=1) > 0
            assert used.sum() == USED
