"""Norms by hand."""

from __future__ import annotations

import pytest
import torch

from trainer.model.norms import AllHeads, EachHead, OutputNorm

EPSILON = 1e-5


def normed(row, weight):
    return row / (row.square().mean() + EPSILON).sqrt() * weight


def test_a_norm_after_a_map():
    torch.manual_seed(0)
    x, weight = torch.randn(3, 6), torch.randn(6)
    expected = torch.stack([normed(row, weight) for row in x])
    torch.testing.assert_close(OutputNorm(weight, EPSILON)(x), expected)


@pytest.mark.parametrize("row", [0, 1])
def test_each_head_by_itself(row):
    """Two query heads and a key head of four, with weights of their own."""
    torch.manual_seed(0)
    x, query, key = torch.randn(2, 3, 4), torch.randn(4), torch.randn(4)
    out = EachHead(torch.stack([query, query, key]), EPSILON)(x)[row]
    expected = [normed(head, w) for head, w in zip(x[row], (query, query, key), strict=True)]
    torch.testing.assert_close(out, torch.stack(expected))


def test_all_query_heads_together_and_all_key_heads_together():
    torch.manual_seed(0)
    x, query, key = torch.randn(2, 3, 4), torch.randn(8), torch.randn(4)
    out = AllHeads(query, key, EPSILON)(x)
    torch.testing.assert_close(out[1, :2].flatten(), normed(x[1, :2].flatten(), query))
    torch.testing.assert_close(out[1, 2], normed(x[1, 2], key))
