from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np
import pytest

from trainer.errors import ModelError
from trainer.gguf.file import GgufFile


def test_reads_metadata_and_shapes(random_llama):
    file = GgufFile(random_llama(width=64, ff_width=96))
    assert file.get("llama.embedding_length", int) == 64
    assert file.text("general.architecture") == "llama"
    assert file.tensors["blk.0.ffn_up.weight"].shape == (96, 64)


def test_dequantises_as_the_gguf_package_does(smollm2):
    """Q4_1, Q8_0 and F32 tensors, bit for bit."""
    file = GgufFile(smollm2)
    for tensor in gguf.GGUFReader(smollm2).tensors[:12]:
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(file.read(tensor.name), expected)


def test_reads_into_a_given_array(random_llama):
    file = GgufFile(random_llama())
    whole = np.zeros((2, 64, 96), np.float32)
    file.read("blk.0.ffn_down.weight", out=whole[1])
    np.testing.assert_array_equal(whole[1], file.read("blk.0.ffn_down.weight"))
    assert not whole[0].any()


def test_missing_file_is_named():
    with pytest.raises(ModelError, match=r"nowhere\.gguf: there is no such file"):
        GgufFile(Path("nowhere.gguf"))


def test_a_folder_is_no_model(tmp_path):
    with pytest.raises(ModelError, match="this is a folder"):
        GgufFile(tmp_path)


def test_another_format_is_no_model(tmp_path):
    other = tmp_path / "model.bin"
    other.write_bytes(b"\x80\x02pickle")
    with pytest.raises(ModelError, match="not a GGUF file"):
        GgufFile(other)


@pytest.mark.parametrize("kept", [100, 3000])
def test_a_header_cut_short_is_refused(random_llama, tmp_path, kept):
    short = tmp_path / "short.gguf"
    short.write_bytes(random_llama().read_bytes()[:kept])
    with pytest.raises(ModelError, match="damaged or cut short"):
        GgufFile(short)


def test_data_cut_short_names_the_first_missing_tensor(random_llama, tmp_path):
    whole = random_llama().read_bytes()
    short = tmp_path / "short.gguf"
    short.write_bytes(whole[:-100])
    with pytest.raises(ModelError, match=rf"has {len(whole) - 100:,} bytes .* output\.weight"):
        GgufFile(short)


@pytest.mark.parametrize(
    ("value", "kind", "expected"), [(8, int, "8"), (8, float, "8.0"), ("eight", str, "'eight'")]
)
def test_metadata_comes_in_the_type_asked_for(random_llama, value, kind, expected):
    file = GgufFile(random_llama(extra=(("general.thing", value),)))
    assert repr(file.get("general.thing", kind)) == expected


def test_a_default_stands_for_what_is_absent_and_without_one_it_is_an_error(random_llama):
    file = GgufFile(random_llama())
    assert file.get("llama.expert_count", int, 0) == 0
    with pytest.raises(ModelError, match=r"model\.gguf: the metadata has no llama\.expert_count"):
        file.get("llama.expert_count", int)


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        ("abc", int, r"= 'abc' in the metadata, where a whole number is expected"),
        ("1.5", float, r"= '1\.5' in the metadata, where a finite number is expected"),
        (2, str, "= 2 in the metadata, where text is expected"),
    ],
)
def test_metadata_of_another_type_is_refused_with_its_value(random_llama, value, kind, words):
    file = GgufFile(random_llama(extra=(("llama.expert_count", value),)))
    with pytest.raises(ModelError, match=r"model\.gguf: llama\.expert_count " + words):
        file.get("llama.expert_count", kind)


@pytest.mark.parametrize("value", [2.75, float("nan"), float("inf"), True])
def test_a_number_is_never_cut_to_a_whole_one(random_llama, tmp_path, value):
    path = tmp_path / "numbers.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    add = writer.add_bool if value is True else writer.add_float64
    add("llama.block_count", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelError, match=rf"block_count = {value} .*a whole number is expected"):
        GgufFile(path).get("llama.block_count", int)


def test_a_name_that_is_not_utf_8_is_opened(random_llama, tmp_path):
    name = os.fsdecode(b"caf\xe9.gguf")
    (tmp_path / name).write_bytes(random_llama().read_bytes())
    assert GgufFile(tmp_path / name).text("general.name") == "random"


def test_what_is_neither_a_file_nor_a_folder_is_told_so(tmp_path):
    os.mkfifo(tmp_path / "pipe.gguf")
    for path in (Path(os.devnull), tmp_path / "pipe.gguf"):
        with pytest.raises(ModelError, match="not a regular file"):
            GgufFile(path)
