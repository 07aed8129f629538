from __future__ import annotations

import os

import numpy as np
import psutil
import pytest
import torch
from small_runs import SMALL

from trainer import sizing
from trainer.gguf.architecture import describe
from trainer.gguf.file import GgufFile
from trainer.gguf.tensors import select_targets
from trainer.model.adapter import Adapter
from trainer.model.decoder import Decoder
from trainer.model.experts import ExpertNetworks
from trainer.model.packing import pack

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def file(request, random_llama):
    return GgufFile(random_llama(tied=request.param, layers=3))


@pytest.fixture(scope="module")
def architecture(random_llama):
    return describe(GgufFile(random_llama(**SMALL)))


@pytest.fixture
def free(monkeypatch):
    """Pretend that so many bytes of memory are free."""

    def set_free(size):
        monkeypatch.setattr(sizing, "available_bytes", lambda: size)

    return set_free


def test_threads_are_cores_that_this_process_may_use():
    assert 1 <= sizing.default_threads() <= (psutil.cpu_count(logical=False) or os.cpu_count())


def test_one_allowed_core_is_one_thread(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    assert sizing.default_threads() == 1


def test_free_memory_is_what_the_system_says():
    assert 0 < sizing.available_bytes() <= psutil.virtual_memory().total


def test_the_base_in_f32_is_the_sum_of_its_matrices(file):
    size = sum(4 * t.count for t in file.tensors.values() if len(t.shape) == 2)
    assert sizing.trained_weights_bytes(describe(file)) == size


def test_every_expert_is_a_part_of_the_base(random_model):
    file = GgufFile(random_model("qwen3moe"))
    size = sum(4 * t.count for t in file.tensors.values() if len(t.shape) > 1)
    assert sizing.trained_weights_bytes(describe(file)) == size


def _feed_forward_maps(network):
    both = (network.gate_up, network.down)
    return [*both[0], *both[1]] if isinstance(network, ExpertNetworks) else both


def kept_bytes(decoder, packed, *, recompute):
    """What the forward half of a pass keeps for the backward half, as autograd itself counts it:
    each storage once, the model's own weights left out."""
    names = select_targets(decoder.architecture, ["auto"])
    adapter = Adapter(decoder.architecture, names, rank=4, alpha=4.0, seed=0, device=CPU)
    weights = {
        linear.weight.untyped_storage().data_ptr()
        for layer in decoder.layers
        for linear in (layer.qkv, layer.output, *_feed_forward_maps(layer.feed_forward))
    }
    kept = {}

    def save(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        states = decoder.states(packed, adapter, recompute=recompute)
    assert states.requires_grad
    return sum(kept.values())


@pytest.mark.parametrize(
    ("name", "options", "share"),
    [
        pytest.param("llama", {"head_size": 32}, 0.1, id="llama"),
        pytest.param("llama", {"head_size": 64}, 0.1, id="llama, large heads"),
        pytest.param("qwen3", {"head_size": 32}, 0.1, id="norms over heads"),
        pytest.param("gemma2", {"head_size": 32}, 0.1, id="norms after, capped attention"),
        pytest.param("olmo2", {"head_size": 32}, 0.1, id="norms after and over heads"),
        pytest.param("phi3", {"head_size": 32, "rotary_size": 24}, 0.1, id="joined matrices"),
        # How evenly rows spread over experts is the router's affair.
        pytest.param(
            "qwen3moe", {"head_size": 32, "experts": (8, 2, 192)}, 0.15, id="a choice of experts"
        ),
    ],
)
def test_activations_are_estimated_near_what_a_pass_really_keeps(
    random_model, name, options, share
):
    shape = {"width": 256, "ff_width": 768, "heads": 8, "kv_heads": 4} | options
    path = random_model(name, **shape, layers=4)
    decoder = Decoder(GgufFile(path), CPU, context=256)
    packed = pack(range(26), [np.arange(30, dtype=np.int32)] * 6, CPU)
    whole = kept_bytes(decoder, packed, recompute=False)
    inputs = kept_bytes(decoder, packed, recompute=True)
    a = decoder.architecture
    estimate = sizing.activation_bytes(a, packed.rows, recompute=False)
    assert estimate == pytest.approx(whole, rel=share)
    # recomputing holds each layer's input, and one of the four layers at a time
    estimate = sizing.activation_bytes(a, packed.rows, recompute=True)
    assert estimate == pytest.approx(inputs + whole / 4, rel=share)


def test_the_cache_holds_keys_and_values_of_every_layer(architecture):
    # 10 tokens in one layer: keys and values of 2 heads of 8 numbers
    assert sizing.cache_bytes(architecture, 10, exact=True) == 10 * 2 * 16 * 4
    assert sizing.cache_bytes(architecture, 10, exact=False) == 10 * 2 * 16 * 2


def test_micro_batch_takes_a_quarter_of_the_memory_between_256_and_560(architecture, free):
    row = sizing.activation_bytes(architecture, 1, recompute=False)
    for rows, expected in ((1, 256), (256, 256), (300, 300), (560, 560), (9999, 560)):
        free(4 * row * rows)
        assert sizing.auto_micro_batch(architecture, recompute=False) == expected


def test_recomputing_makes_room_for_longer_passes(random_llama, free):
    deep = describe(GgufFile(random_llama(layers=8)))
    free(4 * 300 * sizing.activation_bytes(deep, 1, recompute=False))
    assert sizing.auto_micro_batch(deep, recompute=False) == 300
    assert sizing.auto_micro_batch(deep, recompute=True) == 560


def test_concurrency_is_the_answers_of_an_update_and_at_most_32(architecture, free):
    free(1 << 40)
    for answers, expected in ((1, 1), (8, 8), (32, 32), (100, 32)):
        assert (
            sizing.auto_concurrency(architecture, answers=answers, tokens=64, exact=True)
            == expected
        )


def test_concurrency_falls_with_the_memory_and_never_below_one(architecture, free):
    each = sizing.cache_bytes(architecture, 64, exact=True)
    for fitting, expected in ((0, 1), (1, 1), (5, 5), (50, 32)):
        free(4 * each * fitting)
        assert sizing.auto_concurrency(architecture, answers=100, tokens=64, exact=True) == expected
