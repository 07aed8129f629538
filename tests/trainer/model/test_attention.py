"""Positions and attention against the plain formulas, row by row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trainer.gguf.architecture import describe
from trainer.gguf.file import GgufFile
from trainer.model import attention
from trainer.model.packing import pack

HEADS, KV_HEADS, SIZE, SCALE = 4, 2, 3, 0.7


def test_rotation_turns_neighbouring_pairs():
    # one head of four: pair (1, 0) turned by a right angle, pair (0, 2) by half a turn
    x = torch.tensor([[[1.0, 0.0, 0.0, 2.0]]])
    turn = torch.tensor([[1j, -1.0 + 0j]])
    torch.testing.assert_close(attention.rotate(x, turn), torch.tensor([[[0.0, 1.0, 0.0, -2.0]]]))


def test_angles_by_hand(random_llama):
    """Heads of four: pair 0 turns by p and pair 1 by p / 100, with base 10000."""
    a = describe(GgufFile(random_llama(heads=4, kv_heads=2, head_size=4)))
    plain = attention.rotary_angles(a, None, 5)
    p = torch.arange(5.0)
    torch.testing.assert_close(plain[:, 0], torch.complex(p.cos(), p.sin()))
    torch.testing.assert_close(plain[:, 1].angle(), p / 100, rtol=0, atol=1e-6)
    slower = attention.rotary_angles(a, torch.tensor([2.0, 4.0]), 5)
    torch.testing.assert_close(slower[2].angle(), torch.tensor([1.0, 0.005]), rtol=0, atol=1e-6)


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
    out = attention.prefix_attention(q, k, v, SCALE)
    expected = [by_hand(q[i], k[: i + 1], v[: i + 1]) for i in range(5)]
    torch.testing.assert_close(out, torch.stack(expected))


@pytest.mark.parametrize("lengths", [(4, 2, 3), (2, 4), (1, 3)])
def test_an_answer_sees_the_prompt_and_itself_and_no_other_answer(lengths):
    answers = [np.zeros(n, np.int32) for n in lengths]
    layout = pack([0] * 5, answers, torch.device("cpu")).suffixes
    own = [n - 1 for n in lengths]
    q, k, v = rows(5 + sum(own))
    out = attention.suffix_attention(q[5:], k[5:], v[5:], (k[:5], v[:5]), layout, SCALE)
    expected, start = [], 5
    for count in own:
        for i in range(count):
            seen = [*range(5), *range(start, start + i + 1)]
            expected.append(by_hand(q[start + i], k[seen], v[seen]))
        start += count
    torch.testing.assert_close(out, torch.stack(expected))
