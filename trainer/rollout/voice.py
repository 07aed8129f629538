"""One answer at a time, token by token, for somebody who reads while it is written.

It draws what `trainer.rollout.engine` draws: the same logits, the same noise of a seed and a step.
What differs is the waiting. A prompt that begins as the last one did, as each turn of a
conversation does, is decoded from where it differs.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from trainer.chat.vocabulary import Vocabulary
from trainer.closing import Closing
from trainer.llama.batch import TokenBatch
from trainer.llama.context import LlamaContext
from trainer.llama.model import LlamaModel
from trainer.prefix import shared_prefix
from trainer.rollout.answers import SamplingSettings
from trainer.rollout.engine import N_BATCH
from trainer.rollout.sampling import draw

Logits = npt.NDArray[np.float32]
Ending = Literal["end", "length", "context", "stopped"]
"""The model ended it; ``max_new_tokens`` were drawn; prompt and answer fill the context; the reader
had enough."""

_SEQUENCE = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """``tokens`` are the drawn ids, an end token included, and ``text`` is theirs. Of the prompt,
    ``reused`` tokens were in the cache already."""

    tokens: tuple[int, ...]
    text: str
    ending: Ending
    reused: int


class Voice(Closing):
    """A model under one adapter (None: the bare model), with a cache of its own for ``ctx`` tokens.

    ``model`` stays the caller's to close, after this. Several voices of a model share its weights.

    Raises:
        ModelError: llama.cpp refuses the adapter, or there is no memory for the cache.
    """

    def __init__(
        self,
        model: LlamaModel,
        vocabulary: Vocabulary,
        adapter: Path | None,
        *,
        ctx: int,
        exact: bool,
        threads: int,
    ) -> None:
        self.ctx = ctx
        self._vocabulary = vocabulary
        self._context = LlamaContext(
            model, n_ctx=ctx, n_batch=N_BATCH, n_seq_max=1, exact=exact, threads=threads
        )
        self._batch = TokenBatch(self._context.n_batch)
        self._cached: list[int] = []
        try:
            self._context.swap_adapter(adapter)
        except BaseException:
            self._context.close()
            raise

    def answer(
        self,
        prompt: Sequence[int],
        seed: int,
        settings: SamplingSettings,
        *,
        on_text: Callable[[str], None],
        should_stop: Callable[[], bool],
    ) -> Reply:
        """Answer ``prompt``, of 1 to ``ctx`` − 1 tokens. ``on_text`` gets whole characters as they
        come; ``should_stop`` is asked between decode steps. At a temperature of 0 the likeliest
        token is taken, whatever the seed.

        Raises:
            DecodeError: llama.cpp failed.
            TrainingError: the model's logits are not finite.
        """
        if not 0 < len(prompt) < self.ctx:
            raise ValueError(f"a prompt of {len(prompt)} tokens in a context of {self.ctx}")
        reused = self._keep(prompt)
        characters = _Characters(self._vocabulary, on_text)
        tokens: list[int] = []
        logits = self._read(prompt[reused:], should_stop)
        ending: Ending = "stopped"
        while logits is not None:
            token = _drawn(logits, seed, len(tokens), settings)
            tokens.append(token)
            characters.take(token)
            if over := self._over(token, len(prompt), len(tokens), settings):
                ending = over
                break
            logits = self._read([token], should_stop)
        return Reply(tuple(tokens), characters.all(), ending, reused)

    def _over(
        self, token: int, prompt: int, drawn: int, settings: SamplingSettings
    ) -> Ending | None:
        if self._vocabulary.is_end(token):
            return "end"
        if drawn >= settings.max_new_tokens:
            return "length"
        return "context" if prompt + drawn >= self.ctx else None

    def _keep(self, prompt: Sequence[int]) -> int:
        """Forget what does not belong to ``prompt``; how many of its tokens are in the cache. The
        last one is always decoded, for its logits."""
        common = min(shared_prefix([self._cached, prompt]), len(prompt) - 1)
        if not self._context.truncate_sequence(_SEQUENCE, common):
            self._context.clear()
            common = 0
        del self._cached[common:]
        return common

    def _read(self, tokens: Sequence[int], should_stop: Callable[[], bool]) -> Logits | None:
        """Decode ``tokens`` after those in the cache; the logits that follow the last one, or None
        where it was stopped before that."""
        logits: Logits | None = None
        for start in range(0, len(tokens), self._batch.capacity):
            if should_stop():
                return None
            part = np.asarray(tokens[start : start + self._batch.capacity], np.int32)
            first = len(self._cached)
            wanted = np.zeros(len(part), np.int8)
            wanted[-1] = 1
            self._batch.clear()
            self._batch.add(part, np.arange(first, first + len(part)), _SEQUENCE, wanted)
            try:
                logits = self._context.decode(self._batch)[0]
            except BaseException:
                # How much of it has been done is not known.
                self._cached.clear()
                raise
            self._cached += part.tolist()
        return logits

    def close(self) -> None:
        self._context.close()


def _drawn(logits: Logits, seed: int, step: int, settings: SamplingSettings) -> int:
    draws = draw(
        logits[np.newaxis],
        np.array([seed], np.uint64),
        np.array([step]),
        temperature=settings.temperature,
        top_p=settings.top_p,
    )
    return int(draws.tokens[0])


class _Characters:
    """The text of tokens as it comes. A character may be spread over several of them, and is held
    back until it is whole; the rest of one that never is becomes a single U+FFFD."""

    def __init__(self, vocabulary: Vocabulary, on_text: Callable[[str], None]) -> None:
        self._vocabulary = vocabulary
        self._on_text = on_text
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._parts: list[str] = []

    def take(self, token: int) -> None:
        # An end token that a vocabulary spells as text is no part of the answer.
        if not self._vocabulary.is_end(token):
            self._tell(self._decoder.decode(self._vocabulary.piece(token)))

    def all(self) -> str:
        """The whole text; nothing may follow."""
        self._tell(self._decoder.decode(b"", final=True))
        return "".join(self._parts)

    def _tell(self, text: str) -> None:
        if text:
            self._parts.append(text)
            self._on_text(text)
