import gguf
import pytest

from trainer.chat.vocabulary import Vocabulary
from trainer.errors import ModelError
from trainer.llama.model import LlamaModel


def test_smollm2_reads_and_writes_text(smollm2):
    with Vocabulary.open(smollm2) as vocabulary:
        assert (vocabulary.size, vocabulary.bos, vocabulary.eos) == (49152, 1, 2)
        assert not vocabulary.adds_bos
        text = " Hello,\n\n 世界 🎉\tend "
        assert vocabulary.text(vocabulary.tokenize(text, special=False)) == text
        assert "<|im_start|>" in (vocabulary.chat_template or "")


def test_special_names_are_parsed_only_where_asked(smollm2):
    with Vocabulary.open(smollm2) as vocabulary:
        assert vocabulary.tokenize("<|im_end|>", special=True) == [2]
        tokens = vocabulary.tokenize("<|im_end|>", special=False)
        assert not any(vocabulary.is_control(token) for token in tokens)
        assert vocabulary.text(tokens) == "<|im_end|>"
        assert vocabulary.piece(2) == b""
        assert vocabulary.piece(2, special=True) == b"<|im_end|>"


def test_a_loaded_model_can_share_its_vocabulary(smollm2):
    with LlamaModel.open(smollm2, vocab_only=True) as model:
        shared = Vocabulary(model.vocab, model)
        shared.close()
        assert shared.tokenize("Hello", special=False) == [19556]
    with pytest.raises(RuntimeError, match="after its model closed"):
        shared.tokenize("Hello", special=False)


def test_neither_bos_nor_eos_is_added(make_vocabulary):
    vocabulary = make_vocabulary(
        control=("<s>", "</s>"), bos="<s>", eos="</s>", adds_bos=True, adds_eos=True
    )
    assert vocabulary.adds_bos
    assert vocabulary.text(vocabulary.tokenize("hello", special=True)) == "hello"
    assert vocabulary.bos not in vocabulary.tokenize("hello", special=True)
    assert vocabulary.eos not in vocabulary.tokenize("hello", special=True)
    assert vocabulary.tokenize("", special=True) == []


def test_every_end_token_ends(make_vocabulary):
    vocabulary = make_vocabulary(
        control=("<|end_of_text|>", "<|eot_id|>", "<turn>", "<|other|>"),
        eos="<|end_of_text|>",
        eot="<turn>",
    )
    ids = [vocabulary.tokenize(name, special=True)[0] for name in vocabulary.control_names]
    names = {vocabulary.name(token): vocabulary.is_end(token) for token in ids}
    assert names == {
        "<|end_of_text|>": True,
        "<|eot_id|>": True,
        "<turn>": True,
        "<|other|>": False,
    }
    assert vocabulary.text([ids[0], *vocabulary.tokenize("hi", special=False), *ids]) == "hi"


def test_an_end_token_of_ordinary_kind_is_left_out_too(make_vocabulary):
    vocabulary = make_vocabulary(eos="he")
    assert not vocabulary.is_control(vocabulary.eos)
    assert vocabulary.text([*vocabulary.tokenize("ok", special=False), vocabulary.eos]) == "ok"


def test_a_character_over_several_tokens_is_whole_and_a_cut_one_is_one_mark(make_vocabulary):
    vocabulary = make_vocabulary()
    tokens = vocabulary.tokenize("a🎉", special=False)
    assert len(tokens) == 5
    assert vocabulary.text(tokens) == "a🎉"
    assert vocabulary.text(tokens[:-1]) == "a\ufffd"
    assert vocabulary.piece(tokens[1]) == b"\xf0"


def test_nul_and_half_surrogate_pairs_are_text(make_vocabulary):
    vocabulary = make_vocabulary()
    assert vocabulary.text(vocabulary.tokenize("a\0b", special=True)) == "a\0b"
    assert vocabulary.text(vocabulary.tokenize("a\ud83d", special=True)) == "a\ufffd"
    assert vocabulary.text(vocabulary.tokenize("\ud83c\udf89", special=True)) == "🎉"


def test_missing_special_tokens_are_none(make_vocabulary):
    vocabulary = make_vocabulary(control=("<s>",), bos="<s>")
    assert vocabulary.name(vocabulary.bos) == "<s>"
    assert vocabulary.name(None) == ""
    assert vocabulary.chat_template is None


def test_a_foreign_id_is_refused(make_vocabulary):
    vocabulary = make_vocabulary()
    for token in (-1, vocabulary.size):
        with pytest.raises(ValueError, match=rf"token id {token} is outside 0 to"):
            vocabulary.piece(token)


def test_the_rest_of_a_text_gets_no_space(make_vocabulary):
    vocabulary = make_vocabulary(control=("<s>", "</s>"), bos="<s>", eos="</s>", sentencepiece=True)
    assert vocabulary.text(vocabulary.tokenize("hello", special=False)) == " hello"
    assert vocabulary.text(vocabulary.tokenize_rest("hello")) == "hello"


def test_files_that_are_no_model_are_refused(tmp_path):
    path = tmp_path / "model.gguf"
    with pytest.raises(ModelError, match="no such model file"):
        Vocabulary.open(path)
    path.write_bytes(b"GGUF, or so it says")
    with pytest.raises(ModelError, match=r"model\.gguf: llama\.cpp cannot load"):
        Vocabulary.open(path)


def test_a_model_without_vocabulary_is_refused(tmp_path):
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("none")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelError, match="the file holds no vocabulary"):
        Vocabulary.open(path)
