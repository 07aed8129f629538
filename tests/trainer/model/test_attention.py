"""Attention against the plain formulas, row by row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trainer.model import attention
from trainer.model.packing import pack

HEADS, KV_HEADS, SIZE, SCALE = 4, 2, 3, 0.7


def by_hand(q, keys, values):
    """One row (heads, d) on the keys and values (n, kv_heads, d) that it may see."""
    out = torch.empty_like(q)
    for head in range(HEADS):
        shared = head // (HEADS // KV_HEADS)
        weights = (keys[:, shared] @ q[head] * SCALE).softmax(0)
        out[head] = weights @ values[:, shared]
    return out


def rows(count):
    torch.manual_seed(count)
    return (torch.randn(count, heads, SIZE) for heads in (HEADS, KV_HEADS, KV_HEADS))


def test_a_prompt_sees_itself_up_to_each_row():
    q, k, v = rows(5)
    out = attention.prefix_attention(q, k, v, attention.Scoring(SCALE))
    expected = [by_hand(q[i], k[: i + 1], v[: i + 1]) for i in range(5)]
    torch.testing.assert_close(out, torch.stack(expected))


@pytest.mark.parametrize("lengths", [(4, 2, 3), (2, 4), (1, 3)])
def test_an_answer_sees_the_prompt_and_itself_and_no_other_answer(lengths):
    answers = [np.zeros(n, np.int32) for n in lengths]
    layout = pack([0] * 5, answers, torch.device("cpu")).suffixes
    own = [n - 1 for n in lengths]
    q, k, v = rows(5 + sum(own))
    out = attention.suffix_attention(
        q[5:], k[5:], v[5:], (k[:5], v[:5]), layout, attention.Scoring(SCALE)
    )
    expected, start = [], 5
    for count in own:
        for i in range(count):
            seen = [*range(5), *range(start, start + i + 1)]
            expected.append(by_hand(q[start + i], k[seen], v[seen]))
        start += count
    torch.testing.assert_close(out, torch.stack(expected))
