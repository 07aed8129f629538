"""llama.cpp's vocabulary functions, with Python's types and buffers of the right size."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import llama_cpp


@dataclass(frozen=True, slots=True)
class TokenKind:
    """What the file says of one token. ``strips`` tells whether parsing it swallows the white
    space (before, after) it."""

    control: bool
    unknown: bool
    user_defined: bool
    strips: tuple[bool, bool]


class NativeVocabulary:
    """The functions of one vocabulary handle.

    llama.cpp checks no token id, and throws over the C boundary for a foreign one: callers do.
    """

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self.exists: bool = llama_cpp.llama_vocab_type(handle) != llama_cpp.LLAMA_VOCAB_TYPE_NONE
        self.size: int = llama_cpp.llama_vocab_n_tokens(handle)
        self.bos: int = llama_cpp.llama_vocab_bos(handle)
        self.eos: int = llama_cpp.llama_vocab_eos(handle)
        self.adds_bos: bool = llama_cpp.llama_vocab_get_add_bos(handle)

    def tokenize(self, data: bytes, *, special: bool) -> list[int]:
        """The ids of UTF-8 text, without a token added before or after it."""
        capacity = len(data) + 16
        while True:
            buffer = (llama_cpp.llama_token * capacity)()
            count = llama_cpp.llama_tokenize(
                self._handle, data, len(data), buffer, capacity, False, special
            )
            if count >= 0:
                return list(buffer[:count])
            capacity = -count

    def piece(self, token: int, *, special: bool) -> bytes:
        """The bytes that the token stands for; of a control token none, or its name."""
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = llama_cpp.llama_token_to_piece(self._handle, token, buffer, size, 0, special)
            if count >= 0:
                return buffer.raw[:count]
            size = -count

    def text(self, token: int) -> bytes:
        """The token as the file spells it."""
        return bytes(llama_cpp.llama_vocab_get_text(self._handle, token))

    def ends(self, token: int) -> bool:
        """Whether the token ends a generation."""
        return bool(llama_cpp.llama_vocab_is_eog(self._handle, token))

    def is_control(self, token: int) -> bool:
        return bool(llama_cpp.llama_vocab_is_control(self._handle, token))

    def kind(self, token: int) -> TokenKind:
        flags = llama_cpp.llama_vocab_get_attr(self._handle, token)
        return TokenKind(
            control=bool(flags & llama_cpp.LLAMA_TOKEN_ATTR_CONTROL),
            unknown=bool(flags & llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN),
            user_defined=bool(flags & llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED),
            strips=(
                bool(flags & llama_cpp.LLAMA_TOKEN_ATTR_LSTRIP),
                bool(flags & llama_cpp.LLAMA_TOKEN_ATTR_RSTRIP),
            ),
        )
