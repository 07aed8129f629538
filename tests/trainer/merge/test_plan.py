"""What is refused before anything is computed."""

from __future__ import annotations

from collections import namedtuple

import gguf
import pytest

from trainer.errors import ConfigError, ModelError
from trainer.gguf.file import GgufFile
from trainer.merge import plan as module
from trainer.merge.merging import merge
from trainer.merge.plan import check_disk, check_type, make_plan, merged_bytes

ROWS_OF_256 = {"width": 256, "ff_width": 256, "heads": 4, "kv_heads": 2, "head_size": 64}


def test_an_unknown_type_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"type q9: .*Use same, or one of .*q4_k_m, .*q8_0"):
        check_type("q9")


def test_a_type_that_needs_an_importance_matrix_is_refused(random_model, adapter_for):
    base = random_model("llama", **ROWS_OF_256)
    with pytest.raises(ConfigError, match="type iq1_s: needs to know which inputs matter"):
        make_plan(base, adapter_for(base), "iq1_s")


def test_rows_that_do_not_fill_blocks_are_told(random_llama, adapter_for):
    base = random_llama()
    plan = make_plan(base, adapter_for(base), "q4_k_m")
    assert {(f.columns, f.wanted, f.got) for f in plan.fallbacks} >= {(64, "q4_K", "q5_0")}
    assert make_plan(base, adapter_for(base), "f16").fallbacks == ()


@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0", "same"])
def test_the_size_is_known_before(random_llama, adapter_for, tmp_path, kind):
    base = random_llama()
    plan = make_plan(base, adapter_for(base), kind)
    merge(plan, tmp_path / "m.gguf", lambda _: None, threads=1)
    assert plan.size == pytest.approx((tmp_path / "m.gguf").stat().st_size, abs=2**14)


def test_a_run_knows_it_before_there_is_an_adapter(random_llama, adapter_for):
    base = random_llama()
    plan = make_plan(base, adapter_for(base))
    known = merged_bytes(GgufFile(base), plan.factors.targets)
    assert known == pytest.approx(plan.disk_bytes, abs=2**14)


def test_adapter_and_base_the_other_way_round_are_told(random_llama, adapter_for):
    base = random_llama()
    with pytest.raises(ModelError, match="this is an adapter, and the base model is expected"):
        make_plan(adapter_for(base), base)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ((("general.type", "imatrix"),), "a file of type 'imatrix', and the base model"),
        ((("split.count", 3),), "this is one part of a model in 3 files"),
        ((("general.alignment", 8),), "general.alignment = 8"),
    ],
)
def test_a_base_that_is_no_whole_model_is_refused(
    random_llama, adapter_for, tmp_path, extra, words
):
    adapter = adapter_for(random_llama())
    with pytest.raises(ModelError, match=words):
        make_plan(changed(random_llama(), tmp_path / "base.gguf", dict(extra)), adapter)


def changed(base, target, metadata):
    """A copy of ``base`` with other metadata."""
    from trainer.gguf.rewrite import Rewriting

    alignment = metadata.pop("general.alignment", None)
    Rewriting(GgufFile(base), metadata, (), lambda _: iter(())).write(target)
    if alignment is not None:
        reader = gguf.GGUFReader(base)
        writer = gguf.GGUFWriter(str(target), "llama")
        writer.add_uint32("general.alignment", alignment)
        for tensor in reader.tensors:
            writer.add_tensor(tensor.name, tensor.data)
        writer.data_alignment = alignment
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return target


def test_a_disk_without_room_is_told_before(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage(0, 0, 200 << 20))
    check_disk(100 << 20, tmp_path / "not there yet")
    with pytest.raises(ConfigError, match="needs 150 MiB there for a while, and 200 MiB are free"):
        check_disk(150 << 20, tmp_path)
