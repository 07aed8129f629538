"""The tokens of one llama.cpp call, kept in numpy arrays that the C structure points at."""

from __future__ import annotations

import ctypes

import llama_cpp
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]


class TokenBatch:
    """Up to ``capacity`` tokens, each at a position of one sequence.

    A batch is filled by whole slices. Filling the binding's own structure costs two Python calls
    an element, which at 32 sequences is a visible part of a decode step.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._n = 0
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._sequences = np.zeros(capacity, np.int32)
        self._wanted = np.zeros(capacity, np.int8)
        self._sequence_counts = np.ones(capacity, np.int32)
        first = self._sequences.ctypes.data
        step = self._sequences.itemsize
        self._sequence_pointers = np.arange(first, first + step * capacity, step, dtype=np.uintp)

    def __len__(self) -> int:
        return self._n

    @property
    def n_wanted(self) -> int:
        """How many of the tokens ask for their logits."""
        return int(np.count_nonzero(self._wanted[: self._n]))

    def clear(self) -> None:
        self._n = 0

    def add(
        self,
        tokens: npt.ArrayLike,
        positions: npt.ArrayLike,
        sequences: npt.ArrayLike,
        wanted: npt.ArrayLike,
    ) -> None:
        """Append ``tokens`` (n,); the other three are (n,) as well or one value for all.

        ``wanted`` is true where the logits that follow the token are to be returned.
        """
        ids = np.asarray(tokens, np.int32)
        end = self._n + len(ids)
        if end > self.capacity:
            raise ValueError(f"{end} tokens do not fit a batch of {self.capacity}")
        place = slice(self._n, end)
        self._tokens[place] = ids
        self._positions[place] = positions
        self._sequences[place] = sequences
        self._wanted[place] = wanted
        self._n = end

    def arrays(self) -> tuple[Ints, Ints, Ints, npt.NDArray[np.int8]]:
        """Tokens, positions, sequences and wanted flags, each (n,), as views."""
        n = self._n
        return self._tokens[:n], self._positions[:n], self._sequences[:n], self._wanted[:n]

    def native(self) -> llama_cpp.llama_batch:
        """The C structure over this batch's arrays, valid until the batch changes."""
        return llama_cpp.llama_batch(
            n_tokens=self._n,
            token=self._tokens.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            embd=None,
            pos=self._positions.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            n_seq_id=self._sequence_counts.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            seq_id=self._sequence_pointers.ctypes.data_as(
                ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))
            ),
            logits=self._wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )
