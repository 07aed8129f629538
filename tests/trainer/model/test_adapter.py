from __future__ import annotations

import math

import pytest
import torch
from small_runs import SMALL

from trainer.gguf.architecture import describe
from trainer.gguf.file import GgufFile
from trainer.gguf.tensors import select_targets
from trainer.model.adapter import Adapter
from trainer.model.decoder import Decoder

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def file(random_llama):
    return GgufFile(random_llama(**SMALL | {"layers": 2}))


def adapter(file, *, targets=("auto",), rank=2, alpha=4.0, seed=0):
    a = describe(file)
    return Adapter(a, select_targets(a, targets), rank=rank, alpha=alpha, seed=seed, device=CPU)


def test_factors_have_the_shapes_of_their_tensors(file):
    made = adapter(file, targets=["k", "ffn_down"], rank=3)
    assert {n: (tuple(A.shape), tuple(B.shape)) for n, (A, B) in made.factors.items()} == {
        "blk.0.attn_k.weight": ((3, 32), (16, 3)),
        "blk.0.ffn_down.weight": ((3, 48), (32, 3)),
        "blk.1.attn_k.weight": ((3, 32), (16, 3)),
        "blk.1.ffn_down.weight": ((3, 48), (32, 3)),
    }
    assert made.size == 2 * 3 * (32 + 16 + 48 + 32)


def test_b_starts_at_zero_and_a_is_uniform_within_one_over_root_inputs(file):
    made = adapter(file, rank=64)
    for name, (A, B) in made.factors.items():
        assert not B.any(), name
        bound = 1 / math.sqrt(A.shape[1])
        assert A.abs().max() <= bound
        # of thousands of draws some come near the bound; a uniform spread is bound / √3
        assert A.abs().max() > 0.99 * bound
        assert A.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
        assert abs(A.mean().item()) < 0.05 * bound


def test_a_new_adapter_changes_nothing(file):
    decoder = Decoder(file, CPU, context=16)
    tokens = [72, 105, 44, 3, 200]
    assert torch.equal(decoder.logits(tokens, adapter(file)), decoder.logits(tokens, None))


def test_the_seed_decides_the_factors(file):
    one, same, other = (adapter(file, seed=seed).state() for seed in (7, 7, 8))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not any(torch.equal(one[n], other[n]) for n in one if n.endswith("lora_a"))


def test_no_two_matrices_start_alike(file):
    factors = [A.detach() for n, (A, _) in adapter(file).factors.items() if "attn_q" in n]
    assert len(factors) == 2
    assert not torch.equal(*factors)


@pytest.mark.parametrize(
    ("rank", "alpha", "scale"), [(8, 16.0, 2.0), (4, 1.0, 0.25), (3, 3.0, 1.0)]
)
def test_scale_is_alpha_over_rank(file, rank, alpha, scale):
    assert adapter(file, rank=rank, alpha=alpha).scale == scale


def test_factors_are_f32_and_trained(file):
    for parameter in adapter(file).parameters():
        assert parameter.dtype == torch.float32
        assert parameter.requires_grad
        assert parameter.is_leaf


def test_a_state_is_a_copy_and_can_be_set_again(file):
    made = adapter(file)
    state = made.state()
    kept = list(made.parameters())
    with torch.no_grad():
        for p in made.parameters():
            p.add_(1.0)
    name = "blk.0.attn_q.weight"
    assert not torch.equal(state[f"{name}.lora_a"], made.factors[name][0])
    assert not state[f"{name}.lora_b"].any()
    made.load_state(state)
    assert all(torch.equal(made.state()[n], value) for n, value in state.items())
    # An optimizer holds these very tensors.
    assert all(a is b for a, b in zip(kept, made.parameters(), strict=True))


def test_names_are_those_of_an_adapter_file(file):
    names = list(adapter(file, targets=["q"]).state())
    assert names[:2] == ["blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_b"]
    assert len(names) == 4


def test_the_state_of_another_adapter_is_refused(file):
    with pytest.raises(ValueError, match=r"the names differ: .*attn_v\.weight\.lora_a"):
        adapter(file, targets=["q"]).load_state(adapter(file, targets=["q", "v"]).state())


def test_a_random_adapter_has_the_same_shape_and_a_b_of_the_size_asked_for(file):
    made = adapter(file, rank=16)
    other = made.random(0.5)
    assert {n: v.shape for n, v in other.state().items()} == {
        n: v.shape for n, v in made.state().items()
    }
    assert (other.rank, other.alpha) == (made.rank, made.alpha)
    numbers = torch.cat([B.flatten() for _, B in other.factors.values()])
    assert numbers.std().item() == pytest.approx(0.5, rel=0.05)
    assert not any(B.any() for _, B in made.factors.values())
