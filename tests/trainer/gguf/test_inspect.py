from __future__ import annotations

import numpy as np
import pytest
from quantiser import QUANTISED_FTYPES, quantised_copy

from trainer.errors import ModelError
from trainer.gguf.adapter import write_adapter
from trainer.gguf.inspect import inspect_file


def test_a_model_that_can_be_trained(random_llama):
    path = random_llama(layers=2, width=64, ff_width=96, heads=8, kv_heads=2, context=256)
    report = inspect_file(path)
    assert (report.kind, report.architecture, report.name) == ("model", "llama", "random")
    assert report.sizes == {
        "layers": "2",
        "width": "64",
        "feed-forward width": "96",
        "query heads": "8",
        "key/value heads": "2",
        "trained context": "256",
        "rotary base": "10000",
    }
    assert report.types == {"F32": 21}
    assert report.file_bytes == path.stat().st_size
    assert report.chat_template
    assert (report.supported, report.reason, report.adapter) == (True, None, None)
    assert report.decoder.name == "llama"
    assert report.candidates == {
        "q": (64, 64),
        "k": (16, 64),
        "v": (16, 64),
        "o": (64, 64),
        "ffn_gate": (96, 64),
        "ffn_up": (96, 64),
        "ffn_down": (64, 96),
    }
    assert report.special == {"eos": (257, "<|end|>")}
    # 260 tokens in and out, two norms of a layer and one at the end, and the matrices
    matrices = 2 * (64 * 64 + 16 * 64 * 2 + 64 * 64 + 3 * 64 * 96)
    assert report.parameters == 2 * 260 * 64 + 5 * 64 + matrices


def test_candidates_of_joined_matrices_and_of_experts(random_model):
    joined = inspect_file(random_model("phi3")).candidates
    assert (joined["attn_qkv"], joined["ffn_up"]) == ((96, 64), (192, 64))
    mixture = inspect_file(random_model("qwen3moe")).candidates
    assert mixture["ffn_down_exps"] == (6, 64, 32)
    assert "ffn_gate_inp" not in mixture


@pytest.mark.parametrize("value", [260, 2**32 - 1])
def test_a_special_token_beyond_the_vocabulary_has_no_text(random_llama, value):
    key = "tokenizer.ggml.padding_token_id"
    assert inspect_file(random_llama(extra=((key, value),))).special["padding"] == (value, "")


def test_a_quantised_model_counts_its_types(random_llama, tmp_path):
    base = random_llama(width=256, ff_width=256, heads=4, kv_heads=4, head_size=64)
    path = quantised_copy(base, QUANTISED_FTYPES["Q8_0"], tmp_path / "q8.gguf")
    report = inspect_file(path)
    assert report.types == {"F32": 5, "Q8_0": 16}
    assert report.supported


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"architecture": "mamba"}, "the architecture 'mamba' is not supported"),
        ({"extra": (("llama.expert_count", 8),)}, "mixture of experts"),
        ({"drop": ("blk.1.ffn_up.weight",)}, "1 tensors are missing, first blk.1.ffn_up.weight"),
    ],
)
def test_what_cannot_be_trained_is_described_with_the_reason(random_llama, options, reason):
    path = random_llama(**options)
    report = inspect_file(path)
    assert not report.supported
    assert report.decoder is None
    assert reason in report.reason
    assert str(path) not in report.reason
    assert report.sizes["layers"] == "2"


def test_an_adapter_of_rank_1(tmp_path):
    """Whose lora_a is stored without its extent of 1."""
    report = inspect_file(write(tmp_path / "adapter.gguf", {"blk.0.attn_q.weight": 1}))
    assert report.adapter.rank == (1, 1)


def write(path, ranks, **options):
    factors = {}
    for name, rank in ranks.items():
        factors[f"{name}.lora_a"] = np.zeros((rank, 8), np.float32)
        factors[f"{name}.lora_b"] = np.zeros((4, rank), np.float32)
    write_adapter(path, factors, architecture="llama", alpha=16.0, dtype="f16", **options)
    return path


def test_an_adapter(tmp_path):
    ranks = {
        "blk.0.attn_q.weight": 4,
        "blk.1.attn_q.weight": 8,
        "blk.1.ffn_gate.weight": 4,
        "output.weight": 4,
    }
    report = inspect_file(write(tmp_path / "adapter.gguf", ranks, name="sums"))
    assert (report.kind, report.name, report.supported) == ("adapter", "sums", False)
    assert report.adapter.kind == "lora"
    assert report.adapter.rank == (4, 8)
    assert report.adapter.alpha == 16.0
    assert report.adapter.targets == {"q": 2, "ffn_gate": 1, "output.weight": 1}
    assert report.types == {"F16": 8}
    assert "name its base in [model] path" in report.reason


def test_an_adapter_of_nothing_is_refused(tmp_path):
    with pytest.raises(ModelError, match="holds no lora_a tensor"):
        inspect_file(write(tmp_path / "adapter.gguf", {}))


def test_what_is_no_gguf_file_is_refused(tmp_path):
    path = tmp_path / "notes.gguf"
    path.write_text("not a model")
    with pytest.raises(ModelError, match=r"notes\.gguf: .*not a GGUF file"):
        inspect_file(path)
