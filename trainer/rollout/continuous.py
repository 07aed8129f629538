"""Continuous batching: answers start in a slot as soon as another answer has left it.

What all prompts of a call begin with (a chat template's head, a system message) is decoded once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainer.chat.vocabulary import Vocabulary
from trainer.errors import RetrogradError
from trainer.llama.batch import TokenBatch
from trainer.llama.context import LlamaContext
from trainer.prefix import shared_prefix
from trainer.rollout.answers import Answer, SamplingSettings
from trainer.rollout.sampling import draw

Logits = npt.NDArray[np.float32]
Progress = Callable[[int, int], None]

_LEAST_SAVED = 16
"""Tokens. A common prefix costs a decode of its own, and saves itself for each further prompt."""


class RolloutStopped(RetrogradError):  # noqa: N818  (a request that was met, not a failure)
    """``should_stop`` returned true, and the answers under way were dropped."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How the context is divided: sequences 0 to ``slots`` − 1 are answers under way, the next
    ``prompt_sequences`` are prompts with members that have not started, the last one is what all
    prompts begin with, and ``cells`` tokens fit in all."""

    slots: int
    prompt_sequences: int
    cells: int

    @property
    def prefix_sequence(self) -> int:
        return self.slots + self.prompt_sequences


@dataclass(frozen=True, slots=True)
class _Request:
    prompt: int
    member: int
    seed: int


@dataclass(slots=True)
class _LivePrompt:
    """A prompt in the cache. Its cells stay as long as an answer of it waits or runs."""

    sequence: int
    waiting: int
    running: int = 0
    logits: Logits | None = None


class ContinuousBatching:
    """One call of sampling: ``seeds[i][j]`` asks for member j of prompt i."""

    def __init__(
        self,
        context: LlamaContext,
        vocabulary: Vocabulary,
        settings: SamplingSettings,
        layout: Layout,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
    ) -> None:
        self._context = context
        self._vocabulary = vocabulary
        self._settings = settings
        self._layout = layout
        self._prompts = prompts
        self._members = [len(row) for row in seeds]
        self._pending = deque(
            _Request(prompt, member, seed)
            for prompt, row in enumerate(seeds)
            for member, seed in enumerate(row)
        )
        self._total = len(self._pending)
        self._answers: list[list[Answer | None]] = [[None] * len(row) for row in seeds]
        self._live: dict[int, _LivePrompt] = {}
        self._running: dict[int, _Request] = {}
        self._free_slots = list(range(layout.slots))[::-1]
        first = layout.slots
        self._free_prompt_sequences = list(range(first, first + layout.prompt_sequences))[::-1]
        self._prefix = _worth_sharing(prompts)
        self._free_cells = layout.cells - self._prefix
        self._batch = TokenBatch(context.n_batch)
        shape = (layout.slots, settings.max_new_tokens)
        self._tokens = np.zeros(shape, np.int32)
        self._logprobs = np.zeros(shape, np.float32)
        self._lengths = np.zeros(layout.slots, np.int64)
        self._prompt_lengths = np.zeros(layout.slots, np.int64)
        self._seeds = np.zeros(layout.slots, np.uint64)

    def run(
        self, on_progress: Progress | None, should_stop: Callable[[], bool] | None
    ) -> list[list[Answer]]:
        done = 0
        self._prefill_prefix()
        while self._pending or self._running:
            if should_stop is not None and should_stop():
                raise RolloutStopped("sampling was stopped before all answers had ended")
            self._admit()
            if self._running:
                self._step()
            left = len(self._pending) + len(self._running)
            if on_progress is not None and self._total - left > done:
                done = self._total - left
                on_progress(done, self._total)
        return [[answer for answer in row if answer is not None] for row in self._answers]

    def _admit(self) -> None:
        """Start pending answers while slots, prompt sequences and cells last."""
        while slots := self._start():
            rows = [self._prompt_logits(slot) for slot in slots]
            # Answers of one token end here and leave their slots to the next round.
            self._draw(np.array(slots), np.stack(rows))

    def _start(self) -> list[int]:
        slots: list[int] = []
        opened: list[int] = []
        while self._pending and self._free_slots:
            request = self._pending[0]
            if request.prompt not in self._live:
                if not self._room(self._own_cells(request.prompt)):
                    break
                self._reserve_prompt(request.prompt)
                opened.append(request.prompt)
            elif not self._room(0):
                break
            slots.append(self._reserve_slot(self._pending.popleft()))
        if opened:
            self._prefill(opened)
        for slot in slots:
            self._join(slot)
        return slots

    def _room(self, prompt_cells: int) -> bool:
        sequence = prompt_cells == 0 or bool(self._free_prompt_sequences)
        return sequence and prompt_cells + self._settings.max_new_tokens <= self._free_cells

    def _reserve_prompt(self, prompt: int) -> None:
        sequence = self._free_prompt_sequences.pop()
        self._live[prompt] = _LivePrompt(sequence, waiting=self._members[prompt])
        self._free_cells -= self._own_cells(prompt)
        if self._prefix:
            self._context.copy_sequence(self._layout.prefix_sequence, sequence)

    def _own_cells(self, prompt: int) -> int:
        """The cells that a prompt needs beyond those of the common prefix."""
        return len(self._prompts[prompt]) - self._prefix

    def _reserve_slot(self, request: _Request) -> int:
        slot = self._free_slots.pop()
        self._running[slot] = request
        self._free_cells -= self._settings.max_new_tokens
        self._lengths[slot] = 0
        self._prompt_lengths[slot] = len(self._prompts[request.prompt])
        self._seeds[slot] = request.seed
        return slot

    def _join(self, slot: int) -> None:
        """Let the slot begin with its prompt, which is dropped when the last member has it."""
        live = self._live[self._running[slot].prompt]
        self._context.copy_sequence(live.sequence, slot)
        live.waiting -= 1
        live.running += 1
        if live.waiting == 0:
            self._context.remove_sequence(live.sequence)
            self._free_prompt_sequences.append(live.sequence)

    def _prompt_logits(self, slot: int) -> Logits:
        logits = self._live[self._running[slot].prompt].logits
        assert logits is not None, "a prompt is decoded before its members start"
        return logits

    def _prefill_prefix(self) -> None:
        tokens = np.asarray(self._prompts[0][: self._prefix] if self._prefix else (), np.int32)
        for start in range(0, self._prefix, self._batch.capacity):
            part = tokens[start : start + self._batch.capacity]
            self._batch.clear()
            positions = np.arange(start, start + len(part))
            self._batch.add(part, positions, self._layout.prefix_sequence, 0)
            self._context.decode(self._batch)

    def _prefill(self, opened: Sequence[int]) -> None:
        """Decode prompts after the common prefix, cut into batches, and keep the logits after each
        last token."""
        own = [np.asarray(self._prompts[p][self._prefix :], np.int32) for p in opened]
        lengths = [len(part) for part in own]
        tokens = np.concatenate(own)
        positions = np.concatenate([self._prefix + np.arange(length) for length in lengths])
        sequences = np.repeat([self._live[prompt].sequence for prompt in opened], lengths)
        wanted = np.zeros(len(tokens), np.int8)
        wanted[np.cumsum(lengths) - 1] = 1
        order = iter(opened)
        for start in range(0, len(tokens), self._batch.capacity):
            part = slice(start, start + self._batch.capacity)
            self._batch.clear()
            self._batch.add(tokens[part], positions[part], sequences[part], wanted[part])
            for logits in self._context.decode(self._batch):
                self._live[next(order)].logits = logits.copy()

    def _step(self) -> None:
        """One token more for every answer under way."""
        slots = np.array(sorted(self._running))
        lengths = self._lengths[slots]
        self._batch.clear()
        self._batch.add(
            self._tokens[slots, lengths - 1], self._prompt_lengths[slots] + lengths - 1, slots, 1
        )
        self._draw(slots, self._context.decode(self._batch))

    def _draw(self, slots: npt.NDArray[np.int64], logits: Logits) -> None:
        lengths = self._lengths[slots]
        draws = draw(
            logits,
            self._seeds[slots],
            lengths,
            temperature=self._settings.temperature,
            top_p=self._settings.top_p,
        )
        self._tokens[slots, lengths] = draws.tokens
        self._logprobs[slots, lengths] = draws.logprobs
        self._lengths[slots] += 1
        for slot, token in zip(slots.tolist(), draws.tokens.tolist(), strict=True):
            ended = self._vocabulary.is_end(token)
            if ended or self._lengths[slot] == self._settings.max_new_tokens:
                self._finish(slot, ended)

    def _finish(self, slot: int, ended: bool) -> None:
        request = self._running.pop(slot)
        tokens = self._tokens[slot, : self._lengths[slot]].copy()
        self._answers[request.prompt][request.member] = Answer(
            tokens=tokens,
            logprobs=self._logprobs[slot, : self._lengths[slot]].copy(),
            finished=ended,
            text=self._vocabulary.text(tokens.tolist()),
        )
        self._context.remove_sequence(slot)
        self._free_slots.append(slot)
        self._free_cells += self._settings.max_new_tokens
        live = self._live[request.prompt]
        live.running -= 1
        if live.running == 0 and live.waiting == 0:
            del self._live[request.prompt]
            self._free_cells += self._own_cells(request.prompt)


def _worth_sharing(prompts: Sequence[Sequence[int]]) -> int:
    """How many tokens all prompts begin with alike, where decoding them once saves something. Each
    prompt keeps a token of its own, whose logits its answers begin with."""
    if len(prompts) < 2:
        return 0
    common = min(shared_prefix(prompts), min(map(len, prompts)) - 1)
    return common if common * (len(prompts) - 1) >= _LEAST_SAVED else 0
