from __future__ import annotations

from collections import namedtuple

import psutil
import pytest
from quantiser import QUANTISED_FTYPES, quantised_copy

from trainer.gguf.file import GgufFile
from trainer.rollout.weights import weights_for_rollout

DIGEST = "fedcba9876543210" * 4


@pytest.fixture(scope="module")
def base(random_llama, tmp_path_factory):
    target = tmp_path_factory.mktemp("base") / "q8.gguf"
    return quantised_copy(random_llama(), QUANTISED_FTYPES["Q8_0"], target)


def choose(choice, base, cache, **options):
    return weights_for_rollout(choice, base, cache=cache, digest=DIGEST, **options)


def test_the_file_itself_makes_no_copy(base, tmp_path):
    weights = choose("file", base, tmp_path)
    assert (weights.path, weights.kind) == (base, "file")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_a_kind_that_is_asked_for_is_made(base, tmp_path, kind):
    weights = choose(kind, base, tmp_path)
    assert weights.kind == kind
    assert weights.path.parent == tmp_path
    assert kind.upper() in GgufFile(weights.path).type_counts()


def test_auto_takes_f16_where_memory_allows(base, tmp_path):
    weights = choose("auto", base, tmp_path)
    assert (weights.kind, weights.reason) == ("f16", "memory allows a 16-bit copy")


def test_auto_takes_the_file_where_memory_is_short_and_says_how_short(base, tmp_path):
    weights = choose("auto", base, tmp_path, reserved_bytes=2**60)
    assert (weights.path, weights.kind) == (base, "file")
    assert "a 16-bit copy needs 1,099,511,627,7" in weights.reason
    assert "MiB are available" in weights.reason
    assert list(tmp_path.iterdir()) == []


def test_auto_counts_the_memory_there_is_now(base, tmp_path, monkeypatch):
    memory = namedtuple("memory", "available")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory(1000))
    assert choose("auto", base, tmp_path).kind == "file"


def test_auto_looks_for_disk_space_where_the_cache_will_be(base, tmp_path):
    weights = choose("auto", base, tmp_path / "not" / "yet" / "there")
    assert weights.path.parent == tmp_path / "not" / "yet" / "there"


def test_a_base_that_is_wide_already_is_its_own_copy(random_llama, tmp_path):
    base = random_llama()
    weights = choose("f32", base, tmp_path)
    assert (weights.path, weights.kind) == (base, "f32")
    assert "already" in weights.reason
