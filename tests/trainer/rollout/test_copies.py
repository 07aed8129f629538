from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from quantiser import QUANTISED_FTYPES, quantised_copy

from trainer.errors import ModelError
from trainer.gguf.file import GgufFile
from trainer.rollout.copies import cache_folder, copy_bytes, dequantised_copy

DIGEST = "0123456789abcdef" * 4


@pytest.fixture(scope="module")
def base(random_llama, tmp_path_factory):
    """A model with blocks of 32 and of 256 weights, and F32 norms."""
    wide = random_llama(width=256, ff_width=512, heads=4, kv_heads=2, head_size=64)
    target = tmp_path_factory.mktemp("base") / "q4.gguf"
    return quantised_copy(wide, QUANTISED_FTYPES["Q4_K_M"], target)


def test_the_base_of_these_tests_is_a_mixture(base):
    assert {"Q4_K", "Q6_K", "F32"} <= GgufFile(base).type_counts().keys()


@pytest.mark.parametrize(("kind", "width"), [("f32", "F32"), ("f16", "F16")])
def test_every_matrix_of_a_copy_is_wide_and_every_norm_f32(base, tmp_path, kind, width):
    copy = GgufFile(dequantised_copy(base, kind, tmp_path, digest=DIGEST))
    for name, info in GgufFile(base).tensors.items():
        made = copy.tensors[name]
        assert made.shape == info.shape
        assert made.type_name == (width if len(info.shape) > 1 else "F32")
    assert copy.path.stat().st_size == pytest.approx(copy_bytes(GgufFile(base), kind), abs=64)


def test_an_f32_copy_holds_the_bases_weights_bit_for_bit_in_the_same_rows(base, tmp_path):
    copy = GgufFile(dequantised_copy(base, "f32", tmp_path, digest=DIGEST))
    original = GgufFile(base)
    for name in original.tensors:
        np.testing.assert_array_equal(copy.read(name), original.read(name))


def test_a_copy_is_made_once_and_named_by_the_bases_hash(base, tmp_path):
    first = dequantised_copy(base, "f16", tmp_path, digest=DIGEST)
    made = first.stat().st_mtime_ns
    assert dequantised_copy(base, "f16", tmp_path, digest=DIGEST) == first
    assert first.stat().st_mtime_ns == made
    assert first.name == f"{DIGEST[:32]}-f16.gguf"
    assert dequantised_copy(base, "f16", tmp_path, digest="f" * 64) != first
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".gguf", ".gguf"]


def test_a_copy_cut_short_is_made_again(base, tmp_path):
    copy = dequantised_copy(base, "f16", tmp_path, digest=DIGEST)
    whole = copy.read_bytes()
    copy.write_bytes(whole[: len(whole) // 2])
    assert dequantised_copy(base, "f16", tmp_path, digest=DIGEST).read_bytes() == whole


def test_a_full_disk_is_reported_before_anything_is_written(base, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, 2**20))
    with pytest.raises(ModelError, match=r"needs \d+ MiB and 1 MiB are free.*RETROGRAD_CACHE"):
        dequantised_copy(base, "f16", tmp_path, digest=DIGEST)
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_made_is_named(base, tmp_path):
    (tmp_path / "cache").write_text("a file, not a folder")
    with pytest.raises(ModelError, match=r"cache: the folder for copies of models cannot be made"):
        dequantised_copy(base, "f16", tmp_path / "cache", digest=DIGEST)


def test_a_failing_quantiser_leaves_nothing_and_says_why(random_llama, tmp_path):
    base = random_llama(architecture="unheard-of")
    with pytest.raises(ModelError, match=r"cannot copy this model; .*unheard-of"):
        dequantised_copy(base, "f16", tmp_path, digest=DIGEST)
    assert list(tmp_path.iterdir()) == []


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("RETROGRAD_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "shared"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("RETROGRAD_CACHE")
    assert cache_folder() == tmp_path / "shared" / "retrograd"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "retrograd"
