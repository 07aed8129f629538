"""The sum of base and adapter, against the formula by hand."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from quantiser import QUANTISED_FTYPES, quantised_copy
from small_runs import exported

from trainer.errors import ModelError
from trainer.gguf.file import GgufFile
from trainer.merge import factors as module
from trainer.merge.factors import open_factors

ROWS_OF_256 = {"width": 256, "ff_width": 256, "heads": 4, "kv_heads": 2, "head_size": 64}


def merged(base, adapter, name):
    file = GgufFile(base)
    blocks = list(open_factors(adapter, file).merged_rows(name))
    return np.concatenate(blocks).reshape(file.tensors[name].shape)


def by_hand(base, adapter, name, scale):
    a, b = (exported(adapter)[f"{name}.lora_{half}"].astype(np.float64) for half in "ab")
    return GgufFile(base).read(name) + scale * (b @ a)


def test_alpha_over_rank_times_b_a_is_added(random_llama, adapter_for):
    base = random_llama()
    adapter = adapter_for(base, rank=3, alpha=4.0)
    for name in ("blk.0.attn_q.weight", "blk.1.ffn_down.weight"):
        found = merged(base, adapter, name)
        np.testing.assert_allclose(found, by_hand(base, adapter, name, 4 / 3), atol=1e-6)


def test_each_expert_gets_its_own(random_model, adapter_for):
    base = random_model("qwen3moe")
    adapter = adapter_for(base, targets=("ffn_up",), rank=2, alpha=4.0)
    name = "blk.0.ffn_up_exps.weight"
    found = merged(base, adapter, name)
    assert found.shape == (6, 32, 64)
    np.testing.assert_allclose(found, by_hand(base, adapter, name, 2.0), atol=1e-6)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K_M"])
def test_a_quantised_base_is_dequantised(random_llama, adapter_for, tmp_path, kind):
    base = quantised_copy(
        random_llama(**ROWS_OF_256), QUANTISED_FTYPES[kind], tmp_path / "base.gguf"
    )
    adapter = adapter_for(base, rank=2, alpha=4.0)
    name = "blk.1.attn_v.weight"
    found = merged(base, adapter, name)
    np.testing.assert_allclose(found, by_hand(base, adapter, name, 2.0), atol=1e-6)


def test_how_rows_are_cut_into_blocks_changes_nothing(random_model, adapter_for, monkeypatch):
    base = random_model("qwen3moe")
    adapter = adapter_for(base)
    for name in ("blk.0.ffn_down_exps.weight", "blk.1.attn_q.weight"):
        whole = merged(base, adapter, name)
        with monkeypatch.context() as patched:
            patched.setattr(module, "_BLOCK_FLOATS", 7 * 64)
            np.testing.assert_allclose(merged(base, adapter, name), whole, atol=1e-6)


def test_rank_one_is_merged_like_any_other(random_llama, adapter_for):
    base = random_llama()
    adapter = adapter_for(base, rank=1, alpha=2.0)
    name = "blk.0.attn_k.weight"
    tensors = exported(adapter)
    a, b = tensors[f"{name}.lora_a"].reshape(1, -1), tensors[f"{name}.lora_b"].reshape(-1, 1)
    wanted = GgufFile(base).read(name) + 2.0 * (b @ a)
    np.testing.assert_allclose(merged(base, adapter, name), wanted, atol=1e-6)


def write_factors(path, tensors, *, architecture="llama", alpha=None, extra=()):
    """An adapter as some other program may have written it."""
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    if alpha is not None:
        writer.add_float32("adapter.lora.alpha", alpha)
    for key in extra:
        writer.add_array(key, [1, 2])
    for name, value in tensors.items():
        writer.add_tensor(name, np.asarray(value, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def pair(name, rows, rank, columns, value=0.5):
    return {
        f"{name}.lora_a": np.full((rank, columns), value),
        f"{name}.lora_b": np.full((rows, rank), value),
    }


def test_ranks_may_differ_and_each_has_its_own_scale(random_llama, tmp_path):
    """llama.cpp divides alpha by the rank of the matrix at hand."""
    base = random_llama()
    tensors = pair("blk.0.attn_q.weight", 64, 2, 64) | pair("blk.0.attn_k.weight", 16, 4, 64)
    adapter = write_factors(tmp_path / "a.gguf", tensors, alpha=8.0)
    for name in ("blk.0.attn_q.weight", "blk.0.attn_k.weight"):
        # alpha / rank times rank products of 0.5 · 0.5
        found = merged(base, adapter, name) - GgufFile(base).read(name)
        np.testing.assert_allclose(found, 8.0 * 0.25, atol=1e-5)


@pytest.mark.parametrize("alpha", [None, 0.0])
def test_without_an_alpha_the_scale_is_one(random_llama, tmp_path, alpha):
    base, name = random_llama(), "blk.0.attn_q.weight"
    adapter = write_factors(tmp_path / "a.gguf", pair(name, 64, 2, 64), alpha=alpha)
    found = merged(base, adapter, name) - GgufFile(base).read(name)
    np.testing.assert_allclose(found, 2 * 0.25, atol=1e-6)


def test_the_output_matrix_may_be_adapted_where_there_is_one(random_llama, tmp_path):
    base = random_llama()
    adapter = write_factors(tmp_path / "a.gguf", pair("output.weight", 260, 2, 64), alpha=2.0)
    found = merged(base, adapter, "output.weight") - GgufFile(base).read("output.weight")
    np.testing.assert_allclose(found, 0.5, atol=1e-6)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (pair("output.weight", 260, 2, 64), "that is the embedding, to which llama.cpp applies no"),
        (
            pair("token_embd.weight", 64, 2, 260),
            "adapts the embedding, which llama.cpp applies in its own",
        ),
        (pair("blk.7.attn_q.weight", 64, 2, 64), "has no such tensor: the adapter was made for"),
        (pair("blk.0.attn_q.weight", 64, 2, 48), "made for another model"),
        (pair("blk.0.attn_q.weight", 48, 2, 64), "made for another model"),
        (pair("blk.0.attn_norm.weight", 64, 2, 64), "which is no matrix in"),
        ({"blk.0.attn_norm.weight": np.ones(64)}, "is no factor of a LoRA"),
        ({"blk.0.attn_q.weight.lora_a": np.ones((2, 64))}, "lora_b is missing, the other half"),
        (pair("blk.0.attn_q.weight", 64, 2, 64, np.nan), "numbers that are not finite"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(random_llama, tmp_path, tensors, words):
    base = GgufFile(random_llama(tied=True))
    adapter = write_factors(tmp_path / "a.gguf", tensors, alpha=2.0)
    with pytest.raises(ModelError, match=words) as refused:
        open_factors(adapter, base)
    assert str(adapter) in str(refused.value)


def test_an_adapter_of_another_architecture_is_refused(random_llama, random_model, adapter_for):
    adapter = adapter_for(random_model("qwen2"))
    with pytest.raises(ModelError, match="made for the architecture 'qwen2', and the base is"):
        open_factors(adapter, GgufFile(random_llama()))


def test_an_adapter_that_waits_for_certain_words_is_refused(random_llama, tmp_path):
    tensors = pair("blk.0.attn_q.weight", 64, 2, 64)
    key = "adapter.alora.invocation_tokens"
    adapter = write_factors(tmp_path / "a.gguf", tensors, alpha=2.0, extra=[key])
    with pytest.raises(ModelError, match="neither trained nor merged"):
        open_factors(adapter, GgufFile(random_llama()))


def test_a_model_in_the_adapters_place_is_refused(random_llama):
    base = random_llama()
    with pytest.raises(ModelError, match="this is a model, and an adapter is expected"):
        open_factors(base, GgufFile(base))


def test_a_sum_that_is_not_finite_is_refused(random_llama, tmp_path):
    base, name = random_llama(), "blk.0.attn_q.weight"
    adapter = write_factors(tmp_path / "a.gguf", pair(name, 64, 2, 64, 1e30), alpha=2.0)
    with pytest.raises(ModelError, match="not finite, so the two"):
        merged(base, adapter, name)
