"""Rotary position and attention over a packed pass."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.gguf.architecture import Architecture
from trainer.model.packing import Suffixes


def rotary_angles(architecture: Architecture, factors: Tensor | None, length: int) -> Tensor:
    """Unit complex numbers (length, head_size / 2) that turn the pairs of a head by position.

    Pair j at position p turns by p · scale · base^(−2j / head_size) / factor_j (Su et al.,
    "RoFormer", arXiv 2104.09864, eq. 15; the factors are Llama 3's). The angles are formed in
    F64: an F32 product loses digits that long contexts need.
    """
    half = architecture.head_size // 2
    j = torch.arange(half, dtype=torch.float64)
    frequency = architecture.rope_base ** (-j / half) * architecture.rope_scale
    if factors is not None:
        frequency = frequency / factors.cpu().double()
    angles = torch.outer(torch.arange(length, dtype=torch.float64), frequency)
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)


def rotate(x: Tensor, turn: Tensor) -> Tensor:
    """Turn the interleaved pairs (2j, 2j + 1) of each head. x (T, heads, d), turn (T, d / 2)."""
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turn[:, None, :]).flatten(-2)


def prefix_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Causal attention of one text on itself.

    q (P, heads, d); k, v (P, kv_heads, d); heads a multiple of kv_heads. Returns (P, heads, d).
    """
    out = F.scaled_dot_product_attention(
        *_grouped(q[None], k[None], v[None]), is_causal=True, scale=scale
    )
    return out.flatten(0, 1).transpose(0, 1)


def suffix_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    prefix: tuple[Tensor, Tensor],
    layout: Suffixes,
    scale: float,
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

    causal = torch.ones(longest, length + longest, dtype=torch.bool, device=q.device)
    out = F.scaled_dot_product_attention(
        *_grouped(block(q), with_prefix(k, prefix[0]), with_prefix(v, prefix[1])),
        attn_mask=causal.tril(length),
        scale=scale,
    )
    rows = out.view(count, -1, longest, out.shape[-1]).transpose(1, 2).flatten(0, 1)
    return rows.index_select(0, layout.flat)


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
