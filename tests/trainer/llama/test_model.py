from __future__ import annotations

import pytest

from trainer.errors import ModelError
from trainer.llama.model import LlamaModel
from trainer.llama.native import gpu_available


@pytest.fixture(scope="module")
def model(tiny):
    with LlamaModel.open(tiny) as model:
        yield model


def test_metadata_of_any_length_is_read_and_a_missing_key_is_none(model):
    assert model.metadata("general.architecture") == "llama"
    assert model.metadata("retrograd.no.such.key") is None
    template = model.metadata("tokenizer.chat_template")
    assert template is not None
    assert template.endswith(("%}", "}}", "\n"))


def test_a_value_longer_than_the_first_buffer_is_whole(random_llama):
    path = random_llama(extra=(("general.description", "é" * 700),))
    with LlamaModel.open(path, vocab_only=True) as model:
        assert model.metadata("general.description") == "é" * 700


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"gone\.gguf: there is no such model file"):
        LlamaModel.open(tmp_path / "gone.gguf")


def test_a_file_that_is_not_gguf_is_named_with_llama_cpps_reason(tmp_path):
    path = tmp_path / "text.gguf"
    path.write_text("hello, this is not a model")
    with pytest.raises(ModelError, match=r"text\.gguf: .*invalid magic characters: 'hell'"):
        LlamaModel.open(path)


def test_a_file_cut_short_is_named_with_llama_cpps_reason(tiny, tmp_path):
    path = tmp_path / "half.gguf"
    data = tiny.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelError, match=r"half\.gguf: .*not within the file bounds"):
        LlamaModel.open(path)


@pytest.mark.skipif(gpu_available(), reason="this build has a GPU")
def test_a_gpu_asked_of_a_build_without_one_is_refused(tiny):
    with pytest.raises(ModelError, match="built without GPU support"):
        LlamaModel.open(tiny, use_gpu=True)
