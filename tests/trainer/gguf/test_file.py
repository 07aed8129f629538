from __future__ import annotations

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
