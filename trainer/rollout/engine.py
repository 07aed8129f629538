"""The sampler: a model in llama.cpp that answers prompts, many at a time."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from trainer.chat.vocabulary import Vocabulary
from trainer.closing import Closing
from trainer.errors import ConfigError
from trainer.llama.batch import TokenBatch
from trainer.llama.context import MAX_SEQUENCES, ContextInUseError, LlamaContext
from trainer.llama.model import LlamaModel
from trainer.rollout.answers import Answer, SamplingSettings
from trainer.rollout.continuous import ContinuousBatching, Layout, Progress

MAX_CONCURRENCY: Final = 256
N_BATCH: Final = 512
_FEWEST_PROMPTS: Final = 8


def plan_layout(
    *, ctx: int, concurrency: int, max_prompt_tokens: int, group_size: int, max_new_tokens: int
) -> Layout:
    """Divide a context so that ``concurrency`` answers fit at once with the prompts they share.

    Room for twice the prompts of full groups is added: the slow members of earlier groups keep
    their prompts while the next groups start. Where even that is not enough an answer waits for
    cells; it never fails, and its tokens are the same. Of 256, the last ten wait as well: llama.cpp
    has 255 sequences, of which one is for what all prompts share and eight at least are for prompts
    to be decoded together.

    Raises:
        ConfigError: ``concurrency`` is outside 1 to 256, or the longest prompt leaves no room for
            an answer in ``ctx``.
    """
    if not 1 <= concurrency <= MAX_CONCURRENCY:
        raise ConfigError(
            f"generation_concurrency = {concurrency}: must be from 1 to {MAX_CONCURRENCY}"
        )
    needed = max_prompt_tokens + max_new_tokens
    if needed > ctx:
        raise ConfigError(
            f"ctx = {ctx}: the longest prompt has {max_prompt_tokens} tokens, and with "
            f"max_new_tokens = {max_new_tokens} a context of {needed} is needed: raise ctx to "
            f"{needed}, shorten the prompt, or lower max_new_tokens"
        )
    slots = min(concurrency, MAX_SEQUENCES - 1 - _FEWEST_PROMPTS)
    full_groups = math.ceil(slots / group_size)
    prompts = min(slots, 2 * full_groups + 1)
    return Layout(
        slots=slots,
        prompt_sequences=min(full_groups + 1, MAX_SEQUENCES - 1 - slots),
        cells=max(slots * max_new_tokens + prompts * max_prompt_tokens, ctx),
    )


class RolloutEngine(Closing):
    """Answers prompts with the model of one GGUF file under the adapter set last.

    ``ctx`` bounds prompt and answer together, ``max_prompt_tokens`` any prompt. ``concurrency``
    answers are generated at once. ``exact`` trades speed for float32 keys and values. ``forced`` is
    metadata in place of the file's. One thread at a time: a call during another one is refused.

    Raises:
        ConfigError: the sizes do not fit each other.
        ModelError: the file cannot be opened.
    """

    def __init__(
        self,
        weights: Path,
        *,
        ctx: int,
        concurrency: int,
        max_prompt_tokens: int,
        group_size: int,
        settings: SamplingSettings,
        exact: bool,
        threads: int,
        use_gpu: bool = False,
        forced: Mapping[str, int] | None = None,
    ) -> None:
        self.settings = settings
        self._ctx = ctx
        self._max_prompt_tokens = max_prompt_tokens
        self._layout = plan_layout(
            ctx=ctx,
            concurrency=concurrency,
            max_prompt_tokens=max_prompt_tokens,
            group_size=group_size,
            max_new_tokens=settings.max_new_tokens,
        )
        self._lock = threading.Lock()
        with ExitStack() as opened:
            self.model = opened.enter_context(
                LlamaModel.open(weights, use_gpu=use_gpu, forced=forced)
            )
            self.vocabulary = Vocabulary(self.model.vocab, self.model)
            self._context = opened.enter_context(
                LlamaContext(
                    self.model,
                    n_ctx=self._layout.cells,
                    n_batch=N_BATCH,
                    n_seq_max=self._layout.prefix_sequence + 1,
                    exact=exact,
                    threads=threads,
                )
            )
            # Nothing failed: from here on `close` closes them, the context before its model.
            opened.pop_all()

    @property
    def concurrency(self) -> int:
        """How many answers are generated at once: what was asked for, or 246 of llama.cpp's 255."""
        return self._layout.slots

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            raise ContextInUseError(
                f"{self.model.path}: this sampler is at work already; wait for it to return, or "
                "open another one"
            )
        try:
            yield
        finally:
            self._lock.release()

    def swap_adapter(self, path: Path | None) -> None:
        """Sample under the adapter of ``path`` from now on (None: under the bare model).

        Raises:
            ModelError: llama.cpp refuses the adapter; the present one stays.
            ContextInUseError: a call is under way.
        """
        with self._alone():
            self._context.swap_adapter(path)

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        *,
        on_progress: Progress | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> list[list[Answer]]:
        """Draw one answer of prompt i for each seed in ``seeds[i]``, in that order.

        ``on_progress(finished, all)`` is called when answers have ended, and ``should_stop``
        between decode steps.

        Raises:
            RolloutStopped: ``should_stop`` returned true.
            ConfigError: a prompt is empty or longer than the engine was made for.
            DecodeError: llama.cpp failed.
            TrainingError: the model's logits are not finite.
            ContextInUseError: a call is under way.
        """
        if len(prompts) != len(seeds):
            raise ValueError(f"{len(prompts)} prompts, and seeds for {len(seeds)}")
        for index, prompt in enumerate(prompts):
            self._check_prompt(index, len(prompt))
        with self._alone():
            self._context.clear()
            work = ContinuousBatching(
                self._context, self.vocabulary, self.settings, self._layout, prompts, seeds
            )
            return work.run(on_progress, should_stop)

    def _check_prompt(self, index: int, length: int) -> None:
        if length == 0:
            raise ConfigError(f"prompt {index} of the batch has no tokens, and needs at least one")
        if length > self._max_prompt_tokens:
            raise ConfigError(
                f"prompt {index} of the batch has {length} tokens, and the sampler was made for "
                f"prompts of at most {self._max_prompt_tokens}"
            )

    def logits(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """The logits (n, vocabulary) after each of ``tokens`` (n,), under the present adapter.

        Raises:
            ConfigError: there are more tokens than the context holds.
            DecodeError: llama.cpp failed.
            ContextInUseError: a call is under way.
        """
        if len(tokens) > self._context.n_ctx:
            raise ConfigError(
                f"logits of {len(tokens)} tokens are asked for, and the sampler's context holds "
                f"{self._context.n_ctx}"
            )
        rows = np.empty((len(tokens), self.model.n_vocab), np.float32)
        size = self._context.n_outputs_max
        batch = TokenBatch(size)
        with self._alone():
            self._context.clear()
            for start in range(0, len(tokens), size):
                part = np.asarray(tokens[start : start + size], np.int32)
                batch.clear()
                batch.add(part, np.arange(start, start + len(part)), 0, 1)
                rows[start : start + len(part)] = self._context.decode(batch)
            self._context.clear()
        return rows

    def close(self) -> None:
        with self._alone():
            self._context.close()
            self.model.close()
