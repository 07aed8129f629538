from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from trainer.errors import ModelError
from trainer.gguf.architecture import describe
from trainer.gguf.file import GgufFile
from trainer.gguf.tensors import check_tensors


@pytest.fixture
def written(tmp_path, random_llama, monkeypatch):
    """A small model with some calls of its writer altered."""

    def write(method: str, change: Callable[..., tuple[object, ...]]) -> GgufFile:
        original = getattr(gguf.GGUFWriter, method)

        def altered(self: gguf.GGUFWriter, *given: object) -> None:
            original(self, *change(*given))

        with monkeypatch.context() as patch:
            patch.setattr(gguf.GGUFWriter, method, altered)
            return GgufFile(random_llama())

    return write


def refusal(file: GgufFile) -> str:
    with pytest.raises(ModelError) as caught:
        check_tensors(file, describe(file))
    return str(caught.value)


@pytest.mark.parametrize("epsilon", [0.0, -1e-5])
def test_an_epsilon_must_be_above_zero(written, epsilon):
    file = written("add_layer_norm_rms_eps", lambda _: (epsilon,))
    assert f"llama.attention.layer_norm_rms_epsilon = {epsilon:g} must" in refusal(file)


def test_layers_that_predict_ahead_are_refused(random_llama):
    file = GgufFile(random_llama(extra=(("llama.nextn_predict_layers", 1),)))
    assert "llama.nextn_predict_layers = 1" in refusal(file)


@pytest.mark.parametrize("alignment", [1, 8, 16])
def test_an_alignment_below_that_of_ggml_is_refused(tmp_path, alignment):
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(alignment)
    writer.add_block_count(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert f"general.alignment = {alignment};" in refusal(GgufFile(path))


def test_more_layers_than_the_file_holds_are_refused_at_once(written):
    start = time.monotonic()
    file = written("add_block_count", lambda _: (2**31,))
    assert "llama.block_count = 2147483648, and tensors of 2 layers" in refusal(file)
    assert time.monotonic() - start < 5


def test_a_text_that_stands_twice_in_the_vocabulary_is_named(written):
    file = written("add_token_list", lambda tokens: ([*tokens[:4], tokens[2], *tokens[5:]],))
    assert " 2 times (first as tokens 2 and 4)" in refusal(file)


def test_empty_texts_may_stand_in_the_vocabulary_more_than_once(written):
    file = written("add_token_list", lambda tokens: (["", "", *tokens[2:]],))
    check_tensors(file, describe(file))


def test_a_sentencepiece_vocabulary_needs_its_byte_tokens(written):
    file = written("add_tokenizer_model", lambda _: ("llama",))
    # ASCII bytes that stand in the vocabulary as themselves are found.
    assert "byte tokens are not in tokenizer.ggml.tokens, first <0x00>" in refusal(file)


def test_a_norm_must_be_in_f32(written):
    def narrower(name: str, values: np.ndarray) -> tuple[object, ...]:
        return name, values.astype(np.float16) if name == "output_norm.weight" else values

    assert "output_norm.weight has type F16" in refusal(written("add_tensor", narrower))


def test_the_texts_of_a_large_vocabulary_are_read_quickly(smollm2: Path):
    start = time.process_time()
    file = GgufFile(smollm2)
    assert time.process_time() - start < 0.5
    assert len(file.tokens) == 49152
    assert file.tokens[1] == b"<|im_start|>"
    check_tensors(file, describe(file))
