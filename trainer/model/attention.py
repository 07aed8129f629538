"""Attention over a packed pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from trainer.model.packing import Suffixes


@dataclass(frozen=True, slots=True)
class Scoring:
    """How a row weighs those that it sees.

    Query-key products are multiplied with ``scale``; with a ``cap`` c a product s then becomes
    c · tanh(s / c) (Gemma 2's soft cap, arXiv 2408.00118, section 2). With a ``window`` w a row
    sees itself and the w − 1 rows before; without one, all rows before.
    """

    scale: float
    window: int | None = None
    cap: float | None = None


def prefix_attention(q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
    """Causal attention of one text on itself.

    q (P, heads, d); k, v (P, kv_heads, d); heads a multiple of kv_heads. Returns (P, heads, d).
    """
    length = len(q)
    beyond = scoring.window is not None and length > scoring.window
    seen = _seen(length, 0, scoring, q.device) if beyond or scoring.cap else None
    out = _attend(*_grouped(q[None], k[None], v[None]), seen, scoring)
    return out.flatten(0, 1).transpose(0, 1)


def suffix_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    prefix: tuple[Tensor, Tensor],
    layout: Suffixes,
    scoring: Scoring,
) -> Tensor:
    """Attention of the answers' rows on the shared prompt and, causally, on their own answer.

    q (S, heads, d); k, v (S, kv_heads, d), S rows of all answers; prefix: the prompt's k and v,
    (P, kv_heads, d) each. Returns (S, heads, d). Padding needs no mask of its own: it comes after
    every real row of its answer, which causality hides.
    """
    count, longest = layout.count, layout.longest
    length = prefix[0].shape[0]

    def block(x: Tensor) -> Tensor:
        return x.index_select(0, layout.padded).view(count, longest, *x.shape[1:])

    def with_prefix(own: Tensor, before: Tensor) -> Tensor:
        return torch.cat([before.expand(count, -1, -1, -1), block(own)], dim=1)

    grouped = _grouped(block(q), with_prefix(k, prefix[0]), with_prefix(v, prefix[1]))
    out = _attend(*grouped, _seen(longest, length, scoring, q.device), scoring)
    rows = out.view(count, -1, longest, out.shape[-1]).transpose(1, 2).flatten(0, 1)
    return rows.index_select(0, layout.flat)


def _seen(rows: int, before: int, scoring: Scoring, device: torch.device) -> Tensor:
    """Which of ``before`` earlier rows and ``rows`` of their own the latter see: (rows, all)."""
    seen = torch.ones(rows, before + rows, dtype=torch.bool, device=device).tril_(before)
    return seen if scoring.window is None else seen.triu_(before - scoring.window + 1)


def _attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, scoring: Scoring) -> Tensor:
    """Attention of batches made by `_grouped`. Without ``seen``, which a cap needs, each row sees
    those up to it."""
    if scoring.cap is None:
        causal = seen is None
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, is_causal=causal, scale=scoring.scale
        )
    assert seen is not None
    if not torch.is_grad_enabled():
        return _capped(q, k, v, seen, scoring.scale, scoring.cap)
    # The products of all rows with all keys, several times over, are too much to keep.
    out: Tensor = checkpoint(
        _capped, q, k, v, seen, scoring.scale, scoring.cap, use_reentrant=False
    )
    return out


def _capped(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float, cap: float) -> Tensor:
    # The shared keys and values are one matrix for all query heads of a batch entry.
    products = (q.flatten(1, 2) @ k[:, 0].mT).view(*q.shape[:3], -1)
    capped = products.mul(scale / cap).tanh().mul(cap)
    capped = capped.masked_fill(~seen, float("-inf"))
    return (capped.softmax(dim=-1).flatten(1, 2) @ v[:, 0]).view_as(q)


def _grouped(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(B, rows, heads, d) tensors as batches (B · kv_heads, shared, rows, d).

    The query heads that share a key/value head become the heads of one batch entry, so that the
    keys and values are read in place, through a stride of zero, and not copied for each of them.
    """
    kv_heads, d = k.shape[2:]
    shared = q.shape[2] // kv_heads
    queries = q.transpose(1, 2).reshape(-1, shared, q.shape[1], d)
    keys, values = (
        x.transpose(1, 2).reshape(-1, 1, x.shape[1], d).expand(-1, shared, -1, -1) for x in (k, v)
    )
    return queries, keys, values
