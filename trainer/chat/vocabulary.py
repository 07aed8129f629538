"""A model's vocabulary, as llama.cpp applies it: text to token ids and back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Self

from trainer.closing import Closing
from trainer.errors import ModelError
from trainer.llama.model import LlamaModel
from trainer.llama.vocabulary import NativeVocabulary, TokenKind


class Vocabulary(Closing):
    """The token ids of one model.

    ``owner`` is the open model that ``vocab`` (its native handle) belongs to; the vocabulary is
    valid until the owner is closed. `open` reads the vocabulary of a file without its weights, and
    `close` then closes what it opened; a shared owner is left to whoever opened it.

    Raises:
        ModelError: the model has no vocabulary.
    """

    def __init__(self, vocab: int, owner: LlamaModel) -> None:
        self.owner = owner
        self._vocab = NativeVocabulary(vocab)
        self._owned = False
        if not self._vocab.exists:
            raise ModelError(
                f"{owner.path}: the file holds no vocabulary (tokenizer.ggml.model is "
                f"{owner.metadata('tokenizer.ggml.model')}), and retrograd needs one to read text: "
                "convert the model again together with its tokenizer"
            )
        self.size = self._vocab.size
        self.bos = self._valid(self._vocab.bos)
        self.eos = self._valid(self._vocab.eos)
        self.adds_bos = self._vocab.adds_bos

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read the vocabulary of a GGUF file, and none of its weights.

        Raises:
            ModelError: llama.cpp cannot read the file, or it holds no vocabulary.
        """
        model = LlamaModel.open(path, vocab_only=True)
        try:
            vocabulary = cls(model.vocab, model)
        except ModelError:
            model.close()
            raise
        vocabulary._owned = True
        return vocabulary

    @property
    def chat_template(self) -> str | None:
        """The source of the model's default chat template."""
        return self.owner.metadata("tokenizer.chat_template")

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """The ids of ``text``, without a token added before or after it.

        With ``special`` the names of control tokens become those tokens; without, they are text
        like any other. Half surrogate pairs, which no encoding can hold, become U+FFFD.
        """
        return self._native.tokenize(_utf8(text), special=special)

    def tokenize_rest(self, text: str) -> list[int]:
        """The ids of ``text`` where it goes on from text before it; control tokens are not parsed.

        Some vocabularies put a space before any text that starts a call. A line break in front,
        which such vocabularies never merge, takes that space, and its ids are taken off again.
        """
        if not self.adds_space:
            return self.tokenize(text, special=False)
        anchor = self.tokenize("\n", special=False)
        return self.tokenize("\n" + text, special=False)[len(anchor) :]

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of one token, which may be a part of a character.

        Control tokens have none, unless ``special`` asks for their name.
        """
        self._check(token)
        return self._native.piece(token, special=special)

    def text(self, tokens: Sequence[int]) -> str:
        """The text of an answer; control and end tokens are left out.

        Bytes are joined before they are decoded, so a character spread over several tokens is
        whole; one that is cut off becomes a single U+FFFD.
        """
        pieces = (self.piece(token) for token in tokens if not self.is_end(token))
        return b"".join(pieces).decode("utf-8", "replace")

    def name(self, token: int | None) -> str:
        """How a chat template writes this special token; empty for None."""
        return "" if token is None else self.piece(token, special=True).decode("utf-8", "replace")

    def is_end(self, token: int) -> bool:
        """Whether this token ends a generation; a vocabulary may have several that do."""
        self._check(token)
        return self._native.ends(token)

    def is_control(self, token: int) -> bool:
        self._check(token)
        return self._native.is_control(token)

    def strips(self, token: int) -> tuple[bool, bool]:
        """Whether parsing this special token swallows the white space (before, after) it."""
        self._check(token)
        return self._native.kind(token).strips

    @cached_property
    def control_names(self) -> Mapping[str, int]:
        """Text that is parsed as a control token, or as the unknown token, only where asked."""
        return {
            name: token
            for name, (token, kind) in self._special.items()
            if kind.control or kind.unknown
        }

    @cached_property
    def added_names(self) -> Mapping[str, int]:
        """Text that is always parsed as one token, white space apart.

        llama.cpp calls these user-defined. In some files the turn markers of the template are
        among them, in others HTML tags or tool markers.
        """
        return {
            name: token
            for name, (token, _) in self._special.items()
            if name not in self.control_names and not name.isspace()
        }

    @cached_property
    def special_names(self) -> re.Pattern[str]:
        """Finds any of `control_names` and `added_names`."""
        return any_of({**self.control_names, **self.added_names})

    @cached_property
    def _special(self) -> dict[str, tuple[int, TokenKind]]:
        native = self._native
        found = {}
        for token in range(self.size):
            kind = native.kind(token)
            if kind.control or kind.unknown or kind.user_defined:
                # A name that is not UTF-8 never occurs in text.
                found[native.text(token).decode("utf-8", "ignore")] = (token, kind)
        found.pop("", None)
        return found

    @cached_property
    def adds_space(self) -> bool:
        """Whether it puts a space before any text that starts a call."""
        return self.piece(self.tokenize("\n", special=False)[0]).startswith(b" ")

    @property
    def _native(self) -> NativeVocabulary:
        if self.owner.pointer is None:
            raise RuntimeError(f"{self.owner.path}: the vocabulary is used after its model closed")
        return self._vocab

    def _valid(self, token: int) -> int | None:
        return token if 0 <= token < self.size else None

    def _check(self, token: int) -> None:
        # llama.cpp throws over the C boundary for a foreign id, which ends the process.
        if not 0 <= token < self.size:
            raise ValueError(f"{self.owner.path}: token id {token} is outside 0 to {self.size - 1}")

    def close(self) -> None:
        if self._owned:
            self.owner.close()


def any_of(names: Iterable[str]) -> re.Pattern[str]:
    """A pattern that finds these names, and where several begin in one place the longest."""
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) if longest_first else "(?!)")


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        # Through UTF-16, so that two halves that stand side by side become their character.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
