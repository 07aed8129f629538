from __future__ import annotations

import math

import gguf
import numpy as np
import pytest

from trainer.errors import ModelError
from trainer.gguf.adapter import read_adapter, write_adapter
from trainer.gguf.architecture import describe
from trainer.gguf.file import GgufFile

A = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(2, 6)
B = np.linspace(0.0, 3.0, 8, dtype=np.float32).reshape(4, 2)
FACTORS = {"blk.0.attn_q.weight.lora_a": A, "blk.0.attn_q.weight.lora_b": B}


def written(path, *, alpha=4.0, dtype="f32", factors=FACTORS):
    write_adapter(path, factors, architecture="llama", alpha=alpha, dtype=dtype)
    return gguf.GGUFReader(path)


def field(reader, key):
    return reader.fields[key].contents()


def test_metadata_is_what_llama_cpp_looks_for(tmp_path):
    reader = written(tmp_path / "adapter.gguf", alpha=4.5)
    assert field(reader, "general.type") == "adapter"
    assert field(reader, "general.architecture") == "llama"
    assert field(reader, "adapter.type") == "lora"
    assert field(reader, "adapter.lora.alpha") == 4.5
    assert [key for key in reader.fields if "alpha" in key] == ["adapter.lora.alpha"]


@pytest.mark.parametrize(("dtype", "kind"), [("f16", "F16"), ("f32", "F32")])
def test_factors_are_written_as_they_are_in_the_type_asked_for(tmp_path, dtype, kind):
    """Alpha is not multiplied in, and nothing is transposed."""
    reader = written(tmp_path / "adapter.gguf", alpha=400.0, dtype=dtype)
    assert {t.name: t.tensor_type.name for t in reader.tensors} == dict.fromkeys(FACTORS, kind)
    for tensor in reader.tensors:
        expected = FACTORS[tensor.name].astype(dtype.replace("f", "float"))
        np.testing.assert_array_equal(tensor.data, expected)


@pytest.mark.parametrize("alpha", [0.0, -1.0, math.nan])
def test_an_alpha_that_llama_cpp_would_not_apply_is_refused(tmp_path, alpha):
    with pytest.raises(ValueError, match=r"llama\.cpp would read it as a scale of 1"):
        written(tmp_path / "adapter.gguf", alpha=alpha)
    assert list(tmp_path.iterdir()) == []


def test_the_folder_is_made(tmp_path):
    assert written(tmp_path / "runs" / "one" / "adapter.gguf").tensors


def test_an_earlier_file_is_replaced(tmp_path):
    path = tmp_path / "adapter.gguf"
    written(path, alpha=1.0)
    assert field(written(path, alpha=2.0), "adapter.lora.alpha") == 2.0
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_earlier_file_and_nothing_else(tmp_path):
    path = tmp_path / "adapter.gguf"
    written(path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="could not convert"):
        written(path, factors=FACTORS | {"blk.1.attn_q.weight.lora_a": np.array([["no number"]])})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_finished_file_that_cannot_take_its_place_is_removed(tmp_path):
    path = tmp_path / "adapter.gguf"
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        written(path)
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_an_os_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="file"):
        written(tmp_path / "file" / "adapter.gguf")


# -- reading -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def base(random_llama):
    """Two layers of width 64: q has 64 rows, k has 16, down has 96 columns."""
    return describe(GgufFile(random_llama()))


def factors_of(rank=3, **others):
    rng = np.random.default_rng(1)

    def pair(name, rows, columns):
        return {
            f"{name}.lora_a": rng.standard_normal((rank, columns), np.float32),
            f"{name}.lora_b": rng.standard_normal((rows, rank), np.float32),
        }

    down, key = pair("blk.1.ffn_down.weight", 64, 96), pair("blk.0.attn_k.weight", 16, 64)
    return down | key | others


def foreign(path, factors, *, kind=np.float32, architecture="llama", **metadata):
    """A LoRA file as another tool may write it: entries by their own keys, dots as ``__``."""
    writer = gguf.GGUFWriter(path, architecture)
    entries = {"general__type": "adapter", "adapter__type": "lora"} | metadata
    for key, value in entries.items():
        name = key.replace("__", ".")
        if isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif value is not None:
            writer.add_array(name, value)
    for name, value in factors.items():
        writer.add_tensor(name, np.ascontiguousarray(value, kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize("rank", [1, 3])
def test_our_own_files_come_back_as_they_were_written(base, tmp_path, dtype, rank):
    factors = factors_of(rank)
    written(tmp_path / "a.gguf", factors=factors, dtype=dtype, alpha=6.5)
    stored = read_adapter(tmp_path / "a.gguf", base)
    assert (stored.rank, stored.alpha, stored.dtype) == (rank, 6.5, dtype)
    assert stored.targets == ("blk.0.attn_k.weight", "blk.1.ffn_down.weight"), "the base's order"
    assert stored.factors.keys() == factors.keys()
    for name, value in factors.items():
        kept = value.astype(dtype.replace("f", "float")).astype(np.float32)
        np.testing.assert_array_equal(stored.factors[name], kept)
        assert stored.factors[name].shape == value.shape


@pytest.mark.parametrize("metadata", [{}, {"adapter__lora__alpha": 0.0}], ids=["none", "zero"])
def test_without_an_alpha_the_scale_is_1_as_llama_cpp_has_it(base, tmp_path, metadata):
    stored = read_adapter(foreign(tmp_path / "a.gguf", factors_of(5), **metadata), base)
    assert (stored.rank, stored.alpha) == (5, 5.0)


def test_one_factor_in_f32_keeps_the_whole_in_f32(base, tmp_path):
    path = foreign(tmp_path / "a.gguf", factors_of(), kind=np.float16)
    assert read_adapter(path, base).dtype == "f16"
    writer_factors = {
        name: value.astype(np.float16 if "attn_k" in name else np.float32)
        for name, value in factors_of().items()
    }
    path = foreign(tmp_path / "b.gguf", writer_factors, kind=None)
    assert read_adapter(path, base).dtype == "f32"


@pytest.mark.parametrize("rank", [1, 3])
def test_factors_of_experts_come_back_as_they_were_written(random_model, tmp_path, rank):
    """Six experts of 32 on a width of 64, with a pair each."""
    base = describe(GgufFile(random_model("qwen3moe")))
    rng = np.random.default_rng(1)
    name = "blk.1.ffn_down_exps.weight"
    factors = {
        f"{name}.lora_a": rng.standard_normal((6, rank, 32), np.float32),
        f"{name}.lora_b": rng.standard_normal((6, 64, rank), np.float32),
    }
    write_adapter(tmp_path / "a.gguf", factors, architecture="qwen3moe", alpha=2.0, dtype="f32")
    stored = read_adapter(tmp_path / "a.gguf", base)
    assert (stored.rank, stored.targets) == (rank, (name,))
    for key, value in factors.items():
        np.testing.assert_array_equal(stored.factors[key], value)
        assert stored.factors[key].shape == value.shape


def test_factors_of_fewer_experts_are_refused(random_model, tmp_path):
    base = describe(GgufFile(random_model("qwen3moe")))
    factors = {
        "blk.0.ffn_up_exps.weight.lora_a": np.zeros((5, 3, 64), np.float32),
        "blk.0.ffn_up_exps.weight.lora_b": np.zeros((5, 32, 3), np.float32),
    }
    path = foreign(tmp_path / "a.gguf", factors, architecture="qwen3moe")
    with pytest.raises(ModelError, match="32 rows and 64 columns of 6 experts"):
        read_adapter(path, base)


def without(name):
    return {k: v for k, v in factors_of().items() if k != name}


REFUSED = {
    "another architecture": (factors_of(), {"architecture": "gpt2"}, "for the architecture 'gpt2'"),
    "a model": (factors_of(), {"general__type": "model"}, "this is a model, and an adapter"),
    "another kind of adapter": (factors_of(), {"adapter__type": "ia3"}, "adapter of type 'ia3'"),
    "one that waits for words": (
        factors_of(),
        {"adapter__alora__invocation_tokens": [1, 2]},
        "only after certain words",
    ),
    "an alpha below 0": (factors_of(), {"adapter__lora__alpha": -1.0}, "has to be above 0"),
    "half of a pair": (
        without("blk.0.attn_k.weight.lora_b"),
        {},
        "blk.0.attn_k.weight.lora_b is missing, the other half",
    ),
    "another width": (
        factors_of(**{"blk.0.attn_k.weight.lora_a": np.zeros((3, 63))}),
        {},
        r"blk.0.attn_k.weight.lora_a has the shape \(3, 63\).*made for another model",
    ),
    "another number of rows": (
        factors_of(**{"blk.0.attn_k.weight.lora_b": np.zeros((32, 3))}),
        {},
        r"blk.0.attn_k.weight.lora_b has the shape \(32, 3\)",
    ),
    "several ranks": (
        factors_of(
            **{
                "blk.0.attn_q.weight.lora_a": np.zeros((4, 64)),
                "blk.0.attn_q.weight.lora_b": np.zeros((64, 4)),
            }
        ),
        {},
        "has the rank 4 and .* the rank 3",
    ),
    "halves of different ranks": (
        factors_of(**{"blk.0.attn_k.weight.lora_b": np.zeros((16, 4))}),
        {},
        "has the rank 3 and blk.0.attn_k.weight.lora_b the rank 4",
    ),
    "a tensor that is not trained": (
        factors_of(**{"token_embd.weight.lora_a": np.zeros((3, 64))}),
        {},
        "token_embd.weight.lora_a is not a factor of a matrix that is trained",
    ),
    "a layer that the base has not": (
        factors_of(**{"blk.7.attn_q.weight.lora_a": np.zeros((3, 64))}),
        {},
        "blk.7.attn_q.weight.lora_a is not a factor",
    ),
    "a number that is not finite": (
        factors_of(**{"blk.0.attn_k.weight.lora_b": np.full((16, 3), np.nan)}),
        {},
        "blk.0.attn_k.weight.lora_b holds numbers that are not finite",
    ),
    "nothing": ({}, {}, "holds no factors"),
}


@pytest.mark.parametrize(("factors", "options", "words"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused_by_name(base, tmp_path, factors, options, words):
    path = foreign(tmp_path / "a.gguf", factors, **options)
    with pytest.raises(ModelError, match=words) as caught:
        read_adapter(path, base)
    assert str(caught.value).startswith(f"{path}: ")
