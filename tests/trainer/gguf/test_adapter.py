from __future__ import annotations

import math

import gguf
import numpy as np
import pytest

from trainer.gguf.adapter import write_adapter

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
