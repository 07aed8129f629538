"""Vocabularies small enough to write for each test, and the prompts to read with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import gguf
import pytest

from trainer.chat.vocabulary import Vocabulary

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6


def byte_letters() -> dict[int, str]:
    """GPT-2's letter for each byte: itself where it can be seen, else the next from U+0100."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {byte: chr(byte) for byte in seen}
    hidden = (byte for byte in range(256) if byte not in letters)
    return letters | {byte: chr(0x100 + index) for index, byte in enumerate(hidden)}


class MakeVocabulary(Protocol):
    def __call__(
        self,
        *,
        control: tuple[str, ...] = (),
        added: tuple[str, ...] = (),
        bos: str | None = None,
        eos: str | None = None,
        eot: str | None = None,
        adds_bos: bool = False,
        adds_eos: bool = False,
        template: str | None = None,
        sentencepiece: bool = False,
        name: str = "model",
    ) -> Vocabulary: ...


def _bytes_and_merges() -> tuple[list[str], list[int], list[str]]:
    space = byte_letters()[ord(" ")]
    newline = byte_letters()[ord("\n")]
    merges = ["h e", f"{space} he", f"{newline} {newline}", f"{space} {space}", "l l"]
    tokens = [*byte_letters().values(), *(merge.replace(" ", "") for merge in merges)]
    return tokens, [_NORMAL] * len(tokens), merges


def _pieces() -> tuple[list[str], list[int]]:
    """Bytes, letters, and the merges that spell ``</s>``."""
    letters = [*"abcdefghijklmnopqrstuvwxyz<>/|_", "▁", "</", "</s", "▁he", "he"]
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    return tokens, [_UNKNOWN] + [_BYTE] * 256 + [_NORMAL] * len(letters)


@pytest.fixture
def make_vocabulary(tmp_path: Path) -> Iterator[MakeVocabulary]:
    opened = []

    def make(
        *,
        control: tuple[str, ...] = (),
        added: tuple[str, ...] = (),
        bos: str | None = None,
        eos: str | None = None,
        eot: str | None = None,
        adds_bos: bool = False,
        adds_eos: bool = False,
        template: str | None = None,
        sentencepiece: bool = False,
        name: str = "model",
    ) -> Vocabulary:
        path = tmp_path / f"vocabulary-{len(opened)}.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_name(name)
        if sentencepiece:
            tokens, kinds = _pieces()
            writer.add_tokenizer_model("llama")
        else:
            tokens, kinds, merges = _bytes_and_merges()
            writer.add_tokenizer_model("gpt2")
            writer.add_tokenizer_pre("gpt-2")
            writer.add_token_merges(merges)
        tokens += [*control, *added]
        kinds += [_CONTROL] * len(control) + [_USER_DEFINED] * len(added)
        writer.add_token_list(tokens)
        writer.add_token_types(kinds)
        # Longer pieces merge first.
        writer.add_token_scores([float(len(token)) for token in tokens])
        if bos:
            writer.add_bos_token_id(tokens.index(bos))
        if eos:
            writer.add_eos_token_id(tokens.index(eos))
        if eot:
            writer.add_eot_token_id(tokens.index(eot))
        writer.add_add_bos_token(adds_bos)
        writer.add_add_eos_token(adds_eos)
        if template is not None:
            writer.add_chat_template(template)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        opened.append(Vocabulary.open(path))
        return opened[-1]

    yield make
    for vocabulary in opened:
        vocabulary.close()


@pytest.fixture(scope="session")
def smollm2_vocabulary(smollm2: Path) -> Iterator[Vocabulary]:
    with Vocabulary.open(smollm2) as vocabulary:
        yield vocabulary
