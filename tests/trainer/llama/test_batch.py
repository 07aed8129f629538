from __future__ import annotations

import pytest

from trainer.llama.batch import TokenBatch


def test_the_native_structure_reads_what_was_added():
    batch = TokenBatch(8)
    batch.add([11, 12], [0, 1], 3, [0, 1])
    batch.add([21], 5, 7, 1)
    native = batch.native()
    assert native.n_tokens == len(batch) == 3
    assert native.token[:3] == [11, 12, 21]
    assert native.pos[:3] == [0, 1, 5]
    assert [native.seq_id[i][0] for i in range(3)] == [3, 3, 7]
    assert native.n_seq_id[:3] == [1, 1, 1]
    assert native.logits[:3] == [0, 1, 1]


def test_a_cleared_batch_forgets_which_rows_were_wanted():
    batch = TokenBatch(4)
    batch.add([1, 2, 3], [0, 1, 2], 0, 1)
    batch.clear()
    batch.add([4], 0, 0, 0)
    assert (len(batch), batch.n_wanted) == (1, 0)


def test_too_many_tokens_are_refused():
    batch = TokenBatch(2)
    with pytest.raises(ValueError, match="3 tokens do not fit a batch of 2"):
        batch.add([1, 2, 3], 0, 0, 0)
