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


def by_hand_within(q, keys, values, scoring):
    """The same of the last ``window`` keys and values, with products kept within the cap."""
    keys, values = keys[-scoring.window :], values[-scoring.window :]
    out = torch.empty_like(q)
    for head in range(HEADS):
        shared = head // (HEADS // KV_HEADS)
        products = keys[:, shared] @ q[head] * scoring.scale
        if scoring.cap:
            products = scoring.cap * torch.tanh(products / scoring.cap)
        out[head] = products.softmax(0) @ values[:, shared]
    return out


@pytest.mark.parametrize("cap", [None, 0.5])
@pytest.mark.parametrize("window", [1, 3, 6, 100])
def test_a_window_is_as_many_rows_as_its_name_and_a_cap_bounds_products(window, cap):
    scoring = attention.Scoring(SCALE, window, cap)
    layout = pack([0] * 5, [np.zeros(n, np.int32) for n in (4, 3)], torch.device("cpu")).suffixes
    q, k, v = rows(5 + 3 + 2)
    before = attention.prefix_attention(q[:5], k[:5], v[:5], scoring)
    after = attention.suffix_attention(q[5:], k[5:], v[5:], (k[:5], v[:5]), layout, scoring)
    seen = [list(range(i + 1)) for i in range(5)]
    seen += [
        [*range(5), *range(start, i + 1)]
        for start, n in ((5, 3), (8, 2))
        for i in range(start, start + n)
    ]
    expected = [by_hand_within(q[at[-1]], k[at], v[at], scoring) for at in seen]
    torch.testing.assert_close(torch.cat([before, after]), torch.stack(expected))


def test_a_cap_alone():
    q, k, v = rows(5)
    scoring = attention.Scoring(SCALE, None, 0.5)
    wide = attention.Scoring(SCALE, 5, 0.5)
    out = attention.prefix_attention(q, k, v, scoring)
    expected = [by_hand_within(q[i], k[: i + 1], v[: i + 1], wide) for i in range(5)]
    torch.testing.assert_close(out, torch.stack(expected))
