from __future__ import annotations

import pytest

from trainer.llama.model import LlamaModel
from trainer.llama.vocabulary import NativeVocabulary, TokenKind

END = 257  # after 256 bytes and a merge: <|end|>, <|user|>, <|bot|>


@pytest.fixture(scope="module")
def vocabulary(random_llama):
    with LlamaModel.open(random_llama(), vocab_only=True) as model:
        yield NativeVocabulary(model.vocab)


def test_what_the_file_says_of_the_whole(vocabulary):
    assert (vocabulary.exists, vocabulary.size, vocabulary.eos) == (True, 260, END)
    assert vocabulary.adds_bos is False


def test_control_tokens_are_parsed_only_where_asked(vocabulary):
    assert vocabulary.tokenize(b"<|end|>", special=True) == [END]
    spelled = vocabulary.tokenize(b"<|end|>", special=False)
    assert b"".join(vocabulary.piece(token, special=False) for token in spelled) == b"<|end|>"
    assert END not in spelled


def test_a_control_token_has_a_name_and_no_bytes(vocabulary):
    assert vocabulary.text(END) == b"<|end|>"
    assert vocabulary.piece(END, special=True) == b"<|end|>"
    assert vocabulary.piece(END, special=False) == b""
    assert (vocabulary.ends(END), vocabulary.is_control(END)) == (True, True)
    assert (vocabulary.ends(65), vocabulary.is_control(65)) == (False, False)


def test_kinds(vocabulary):
    assert vocabulary.kind(END).control
    assert vocabulary.kind(65) == TokenKind(False, False, False, strips=(False, False))


def test_a_long_text_comes_back_whole(vocabulary):
    text = "in é 日本 ".encode() * 2000
    ids = vocabulary.tokenize(text, special=False)
    assert b"".join(vocabulary.piece(token, special=False) for token in ids) == text
