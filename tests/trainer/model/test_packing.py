"""The layout of a pass, written out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trainer.model.packing import pack, pack_apart, pack_text, packed_rows

CPU = torch.device("cpu")


def answers(*rows):
    return [np.array(row, np.int32) for row in rows]


def test_three_answers_on_a_prompt_of_three():
    packed = pack([7, 8, 9], answers([1, 2, 3], [4], [5, 6]), CPU)
    # The last token of each answer is predicted only, so [4] has no row of its own.
    assert packed.tokens.tolist() == [7, 8, 9, 1, 2, 5]
    assert packed.positions.tolist() == [0, 1, 2, 3, 4, 3]
    # Row 2, the prompt's last, predicts the first token of every answer.
    assert packed.states.tolist() == [2, 3, 4, 2, 2, 5]
    assert packed.targets.tolist() == [1, 2, 3, 4, 5, 6]
    assert packed.lengths == (3, 1, 2)
    assert (packed.prefix, packed.rows, packed.longest) == (3, 6, 5)


def test_the_block_holds_the_answers_with_rows_and_repeats_row_0_as_padding():
    suffixes = pack([7, 8, 9], answers([1, 2, 3], [4], [5, 6]), CPU).suffixes
    # Rows counted from the end of the prompt: 0 and 1 of the first answer, 2 of the third.
    assert (suffixes.count, suffixes.longest) == (2, 2)
    assert suffixes.padded.tolist() == [0, 1, 2, 0]
    assert suffixes.flat.tolist() == [0, 1, 2]


def test_a_short_answer_before_a_long_one_leaves_a_gap_in_the_block():
    suffixes = pack([7], answers([1, 2], [3, 4, 5, 6]), CPU).suffixes
    assert suffixes.padded.tolist() == [0, 0, 0, 1, 2, 3]
    assert suffixes.flat.tolist() == [0, 3, 4, 5]


def test_answers_of_one_token_need_no_rows_but_the_prompts():
    packed = pack([7, 8], answers([1], [2]), CPU)
    assert packed.suffixes is None
    assert packed.tokens.tolist() == [7, 8]
    assert packed.states.tolist() == [1, 1]
    assert (packed.rows, packed.longest) == (2, 2)


def test_a_text_wants_every_state_and_has_no_targets():
    packed = pack_text([4, 5, 6], CPU)
    assert packed.tokens.tolist() == [4, 5, 6]
    assert packed.positions.tolist() == packed.states.tolist() == [0, 1, 2]
    assert (packed.targets.tolist(), packed.lengths, packed.suffixes) == ([], (), None)
    assert packed.longest == 3


def test_only_marked_tokens_are_predicted_and_all_are_read():
    marks = [np.array(m, np.bool_) for m in ([1, 0, 1], [0, 1])]
    packed = pack_apart([[7, 8], [7, 9, 5]], answers([1, 2, 3], [4, 6]), CPU, marks)
    # The prefix 7; then 8 1 2, and 9 5 4.
    assert packed.tokens.tolist() == [7, 8, 1, 2, 9, 5, 4]
    assert packed.states.tolist() == [1, 3, 6]
    assert packed.targets.tolist() == [1, 3, 6]
    assert packed.lengths == (2, 1)
    assert (packed.prefix, packed.rows) == (1, 7)


@pytest.mark.parametrize("lengths", [(1,), (3, 1, 2)])
def test_rows_are_counted_as_they_are_packed(lengths):
    packed = pack([1, 2, 3, 4], [np.zeros(n, np.int32) for n in lengths], CPU)
    assert packed_rows(4, lengths) == packed.rows


@pytest.mark.parametrize(("prompt", "rows"), [([], [[1]]), ([1], [[2], []])])
def test_nothing_may_be_empty(prompt, rows):
    with pytest.raises(ValueError, match="at least one token"):
        pack(prompt, answers(*rows), CPU)
