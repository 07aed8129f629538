"""A GGUF file written again, looked at by the gguf package."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from trainer.errors import ModelError
from trainer.gguf.file import GgufFile
from trainer.gguf.rewrite import Rewriting

SHAPES = {"one": (5,), "two": (3, 8), "three": (2, 4, 32), "last": (7,)}


@pytest.fixture
def values():
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


@pytest.fixture(params=[32, 64, 128])
def base(request, tmp_path, values):
    """Tensors of several types, whose ends fall between the marks of the alignment."""
    writer = gguf.GGUFWriter(str(tmp_path / "base.gguf"), "llama")
    writer.add_custom_alignment(request.param)
    writer.add_string("a.text", "ü")
    writer.add_uint32("a.number", 7)
    writer.add_int64("a.large", -(2**40))
    writer.add_array("a.texts", ["x", "", "ü\N{SNOWMAN}"])
    writer.add_array("a.bools", [True, False])
    writer.add_float64("a.double", 0.1)
    for name, value in values.items():
        if name == "three":
            blocks = gguf.quantize(value, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(name, blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(name, value.astype(np.float16) if name == "two" else value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(tmp_path / "base.gguf")


def rewritten(base, tmp_path, metadata=None, rows=None):
    rows = rows or {}
    what = Rewriting(base, metadata or {}, list(rows), lambda name: iter(rows[name]))
    what.write(tmp_path / "again.gguf")
    return gguf.GGUFReader(tmp_path / "again.gguf")


def test_nothing_changed_is_the_same_file(base, tmp_path):
    rewritten(base, tmp_path)
    assert (tmp_path / "again.gguf").read_bytes() == base.path.read_bytes()


def test_metadata_is_set_replaced_and_removed_and_all_else_stays(base, tmp_path):
    changes = {"a.text": "other", "a.number": None, "a.double": 3, "b.new": "new", "b.no": None}
    after = {k: f.contents() for k, f in rewritten(base, tmp_path, changes).fields.items()}
    before = {k: f.contents() for k, f in gguf.GGUFReader(base.path).fields.items()}
    different = {k for k in before.keys() | after.keys() if before.get(k) != after.get(k)}
    assert different == {"a.text", "a.number", "a.double", "b.new"}
    assert (after["a.text"], after["a.double"], after["b.new"]) == ("other", 3, "new")
    assert "a.number" not in after


@pytest.mark.parametrize("name", list(SHAPES))
def test_a_tensor_is_computed_anew_and_all_others_stay(base, tmp_path, values, name):
    rows = values[name].reshape(-1, SHAPES[name][-1]) + 1
    reader = rewritten(base, tmp_path, {"a.text": "x" * 100}, {name: [rows[:1], rows[1:]]})
    before = {t.name: t for t in gguf.GGUFReader(base.path).tensors}
    for tensor in reader.tensors:
        if tensor.name == name:
            assert tensor.tensor_type.name == "F32"
            np.testing.assert_array_equal(tensor.data, values[name] + 1)
        else:
            assert tensor.tensor_type == before[tensor.name].tensor_type
            assert tensor.data.tobytes() == before[tensor.name].data.tobytes()
        assert tensor.data_offset % reader.alignment == 0


def test_its_size_is_known_before(base, tmp_path, values):
    what = Rewriting(base, {}, ["three"], lambda name: iter([values[name]]))
    what.write(tmp_path / "again.gguf")
    assert what.size == pytest.approx((tmp_path / "again.gguf").stat().st_size, abs=4 * 128)


def test_a_base_that_has_gone_is_told(base, tmp_path):
    base.path.unlink()
    with pytest.raises(ModelError, match="is not there any more, or has changed"):
        rewritten(base, tmp_path)


def test_rows_are_read_as_parts_of_the_whole(base):
    whole = base.read("three").reshape(-1, 32)
    np.testing.assert_array_equal(base.read_rows("three", 3, 7), whole[3:7])
    np.testing.assert_array_equal(base.read_rows("two", 1, 3), base.read("two")[1:])
