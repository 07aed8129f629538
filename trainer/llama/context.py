"""A context to run a model of llama.cpp in: a key/value cache, batches, and an adapter."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import llama_cpp
import numpy as np
import numpy.typing as npt

from trainer.closing import Closing
from trainer.errors import ConfigError, ModelError, RetrogradError
from trainer.llama.batch import TokenBatch
from trainer.llama.model import LlamaModel, adapter_handle
from trainer.llama.native import start_native

MAX_SEQUENCES: Final = 255
"""llama.cpp's 256, less the one that pads a batch of a single token."""

_LOGIT_ROWS = 32
_KV_F32 = 0
_KV_F16 = 1
_FLASH_AUTO = -1
_FLASH_OFF = 0
_MOST_SCORE_BYTES = 128 << 20


class DecodeError(RetrogradError):
    """llama.cpp could not evaluate a batch."""


class ContextInUseError(RetrogradError):
    """Two threads met in one llama.cpp context."""


class LlamaContext(Closing):
    """A key/value cache shared by many sequences, and the buffers to evaluate batches in.

    The cache is one unified buffer of ``n_ctx`` cells, so a prompt that several sequences begin
    with is held once. ``exact`` keeps keys and values in float32 and computes attention without
    the flash kernel, whatever that costs. One `decode` returns at most ``n_outputs_max`` rows of
    logits. A context serves one thread at a time; a second thread is refused.

    A lone token is evaluated beside a second one that is then forgotten. ggml has other kernels for
    one column than for several, and their sums differ by 1e-2 in the logits of an F16 file; among
    two columns and more, a column's result does not depend on how many there are. Without this the
    last answer of a batch, or a concurrency of 1, would sample from slightly other logits.
    """

    def __init__(
        self,
        model: LlamaModel,
        *,
        n_ctx: int,
        n_batch: int,
        n_seq_max: int,
        exact: bool,
        threads: int,
    ) -> None:
        if not 1 <= n_seq_max <= MAX_SEQUENCES:
            raise ConfigError(
                f"{n_seq_max} sequences at once are asked for, and llama.cpp holds 1 to "
                f"{MAX_SEQUENCES}: lower generation_concurrency"
            )
        self.model = model
        self.n_batch: int = n_batch
        self.n_seq_max = n_seq_max
        # llama.cpp aborts where this is below its own number of sequences.
        self.n_outputs_max = max(n_seq_max + 1, _LOGIT_ROWS)
        self._threads = threads
        self._exact = exact
        self._lock = threading.RLock()
        self._adapter: int | None = None
        self._pair = TokenBatch(2)
        self._pointer: int | None = self._create(n_ctx + 1)
        self._memory: int = llama_cpp.llama_get_memory(self._pointer)
        self.n_ctx: int = llama_cpp.llama_n_ctx(self._pointer)
        self.n_batch = llama_cpp.llama_n_batch(self._pointer)  # at most the context

    def _create(self, n_ctx: int) -> int:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_batch = self.n_batch
        params.n_ubatch = min(self.n_batch, 512)
        params.n_seq_max = self.n_seq_max + 1
        # The default reserves logits for every token of a batch: n_batch × vocabulary floats.
        params.n_outputs_max = self.n_outputs_max
        params.n_outputs_max_per_seq = 0
        params.n_threads = self._threads
        params.n_threads_batch = self._threads
        params.kv_unified = True
        params.type_k = params.type_v = _KV_F32 if self._exact else _KV_F16
        params.flash_attn_type = self._flash(n_ctx, params.n_ubatch)
        log = start_native()
        mark = log.mark()
        pointer: int | None = llama_cpp.llama_init_from_model(self.model.pointer, params)
        if pointer is None:
            raise ModelError(
                f"{self.model.path}: llama.cpp cannot make a context of {n_ctx} tokens (memory?): "
                f"lower ctx, max_new_tokens or generation_concurrency; {log.quote(mark)}"
            )
        return pointer

    def _flash(self, n_ctx: int, n_ubatch: int) -> int:
        """Whether to use the flash kernel. On a CPU it is the slower one (a step of 32 answers on
        a 260-token prompt took 251 ms with it and 144 ms without), and pays only where the plain
        one's matrix of scores would be large."""
        heads = llama_cpp.llama_model_n_head(self.model.pointer)
        small = heads * n_ctx * n_ubatch * 4 <= _MOST_SCORE_BYTES
        return _FLASH_OFF if self._exact or (small and not self.model.on_gpu) else _FLASH_AUTO

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the context for one thread.

        Raises:
            ContextInUseError: another thread holds it.
        """
        if not self._lock.acquire(blocking=False):
            raise ContextInUseError(
                f"{self.model.path}: another thread is using this llama.cpp context; wait for it, "
                "or open a second one"
            )
        try:
            yield
        finally:
            self._lock.release()

    def decode(self, batch: TokenBatch) -> npt.NDArray[np.float32]:
        """Evaluate ``batch`` and return the logits (wanted rows, vocabulary) in the batch's order.

        The result is a view of native memory that the next call overwrites: copy what must last.

        Raises:
            DecodeError: the cache is full, the batch is invalid, or the computation failed.
            ContextInUseError: another thread holds the context.
        """
        n_wanted = batch.n_wanted
        self._check_size(batch, n_wanted)
        log = start_native()
        with self.exclusive():
            mark = log.mark()
            status = self._evaluate(batch)
            if status != 0:
                raise DecodeError(self._explain(status, len(batch)) + f"; {log.quote(mark)}")
            if n_wanted == 0:
                return np.empty((0, self.model.n_vocab), np.float32)
            pointer = llama_cpp.llama_get_logits(self._pointer)
        return np.ctypeslib.as_array(pointer, (n_wanted, self.model.n_vocab))

    def _evaluate(self, batch: TokenBatch) -> int:
        if len(batch) != 1:
            return int(llama_cpp.llama_decode(self._pointer, batch.native()))
        spare = self.n_seq_max
        self._pair.clear()
        self._pair.add(*batch.arrays())
        self._pair.add([0], 0, spare, 0)
        status: int = llama_cpp.llama_decode(self._pointer, self._pair.native())
        self.remove_sequence(spare)
        return status

    def _check_size(self, batch: TokenBatch, n_wanted: int) -> None:
        # llama.cpp aborts the process on either.
        if len(batch) > self.n_batch:
            raise DecodeError(f"a batch of {len(batch)} tokens is over the limit of {self.n_batch}")
        if n_wanted > self.n_outputs_max:
            raise DecodeError(
                f"logits of {n_wanted} tokens are asked for at once, and the context was made for "
                f"{self.n_outputs_max}"
            )

    def _explain(self, status: int, n_tokens: int) -> str:
        head = f"{self.model.path}: llama.cpp could not evaluate {n_tokens} tokens (status {status}"
        if status == 1:
            return (
                f"{head}): no free cells for them among the cache's {self.n_ctx}, "
                "so more is kept at once than the context was made for"
            )
        if status == 2:
            return f"{head}): the computation was aborted"
        if status == -1:
            return f"{head}): the batch is invalid"
        return f"{head}): the computation failed"

    def copy_sequence(self, source: int, target: int) -> None:
        """Let sequence ``target`` begin with all of ``source``; the cells are shared."""
        with self.exclusive():
            llama_cpp.llama_memory_seq_cp(self._memory, source, target, -1, -1)

    def remove_sequence(self, sequence: int) -> None:
        """Free the cells that ``sequence`` alone holds."""
        with self.exclusive():
            llama_cpp.llama_memory_seq_rm(self._memory, sequence, -1, -1)

    def truncate_sequence(self, sequence: int, length: int) -> bool:
        """Forget what ``sequence`` holds from position ``length`` on; false where the model's kind
        of memory cannot, and all of it has to go."""
        with self.exclusive():
            return bool(llama_cpp.llama_memory_seq_rm(self._memory, sequence, length, -1))

    def clear(self) -> None:
        """Forget every sequence."""
        with self.exclusive():
            llama_cpp.llama_memory_clear(self._memory, False)

    def swap_adapter(self, path: Path | None) -> None:
        """Put the adapter of ``path`` (None: the bare model) in place of the present one.

        The new one is loaded before the old one is freed: the allocator would otherwise hand out
        the same address again, and llama.cpp, which compares addresses, would keep its old
        computation graph. The memory is cleared because keys and values computed under the old
        adapter are wrong under the new one.

        Raises:
            ModelError: llama.cpp refuses the file; the present adapter stays.
        """
        with self.exclusive():
            new = None if path is None else self.model.load_adapter(path)
            status = self._set_adapter(new)
            if status != 0:
                if new is not None:
                    self.model.free_adapter(new)
                raise ModelError(
                    f"{path or 'no adapter'}: llama.cpp does not put it in place of the present "
                    f"one for {self.model.path} (status {status}); please report it"
                )
            if self._adapter is not None:
                self.model.free_adapter(self._adapter)
            self._adapter = new
            self.clear()

    def _set_adapter(self, adapter: int | None) -> int:
        if adapter is None:
            return int(llama_cpp.llama_set_adapters_lora(self._pointer, None, 0, None))
        handles = (llama_cpp.llama_adapter_lora_p_ctypes * 1)(adapter_handle(adapter))
        # llama.cpp multiplies alpha / rank, which it reads from the file, with this.
        scales = (ctypes.c_float * 1)(1.0)
        return int(llama_cpp.llama_set_adapters_lora(self._pointer, handles, 1, scales))

    def close(self) -> None:
        """Free the context, then its adapter. The model stays open."""
        if self._pointer is None:
            return
        with self.exclusive():
            llama_cpp.llama_free(self._pointer)
            self._pointer = None
            if self._adapter is not None:
                self.model.free_adapter(self._adapter)
                self._adapter = None
