"""One layer of a decoder, put together from the parts that its architecture names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from trainer.gguf.architecture import Architecture
from trainer.gguf.rotary import LayerKind, Rotary
from trainer.model.attention import Scoring, prefix_attention, suffix_attention
from trainer.model.lora import Factors, JoinedLinear
from trainer.model.norms import HeadNorm, OutputNorm
from trainer.model.packing import Pack
from trainer.model.rotary import rotate


class FeedForward(Protocol):
    """A map of the residual stream's rows, (T, width) → (T, width), its norm before included."""

    def __call__(
        self, x: Tensor, factors: Mapping[str, Factors] | None, scale: float
    ) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Gated:
    """One feed-forward network with a gate."""

    gate_up: JoinedLinear
    down: JoinedLinear

    def __call__(self, x: Tensor, factors: Mapping[str, Factors] | None, scale: float) -> Tensor:
        return self.down(self.gate_up(x, factors, scale), factors, scale)


@dataclass(frozen=True, slots=True)
class Layer:
    """Attention and a feed-forward network, each added to the residual stream.

    The norms after them, and that of queries and keys, are None where the architecture has none.
    """

    architecture: Architecture
    kind: LayerKind
    qkv: JoinedLinear
    head_norm: HeadNorm | None
    output: JoinedLinear
    output_norm: OutputNorm | None
    feed_forward: FeedForward
    feed_forward_norm: OutputNorm | None

    def __call__(
        self,
        x: Tensor,
        turns: Mapping[Rotary, Tensor],
        pack: Pack,
        factors: Mapping[str, Factors] | None,
        scale: float,
    ) -> Tensor:
        """(T, width) → (T, width). ``turns`` are the angles (T, size / 2) of the pass's rows."""
        qkv = self.qkv(x, factors, scale)
        attended = self.output(self._attention(qkv, turns, pack), factors, scale)
        x = self._add(x, attended, self.output_norm)
        return self._add(x, self.feed_forward(x, factors, scale), self.feed_forward_norm)

    def _add(self, x: Tensor, change: Tensor, norm: OutputNorm | None) -> Tensor:
        change = norm(change) if norm else change
        return torch.add(x, change, alpha=self.architecture.scales.residual)

    def _attention(self, qkv: Tensor, turns: Mapping[Rotary, Tensor], pack: Pack) -> Tensor:
        a = self.architecture
        # split, not slices: a slice's gradient is a tensor of zeros with one part filled.
        heads = qkv.view(len(qkv), -1, a.head_size)
        both, v = torch.split(heads, [a.heads + a.kv_heads, a.kv_heads], dim=1)
        if self.head_norm:
            both = self.head_norm(both)
        if self.kind.rotary:
            both = rotate(both, turns[self.kind.rotary], self.kind.rotary.pairs)
        q, k = torch.split(both, [a.heads, a.kv_heads], dim=1)
        return self._attend(q, k, v, pack).reshape(len(qkv), -1)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, pack: Pack) -> Tensor:
        scales = self.architecture.scales
        scoring = Scoring(scales.attention, self.kind.window, scales.attention_cap)
        if pack.suffixes is None:
            return prefix_attention(q, k, v, scoring)
        if pack.prefix == 0:
            return suffix_attention(q, k, v, (k[:0], v[:0]), pack.suffixes, scoring)
        parts = [pack.prefix, len(q) - pack.prefix]
        (q0, q1), (k0, k1), (v0, v1) = (torch.split(x, parts) for x in (q, k, v))
        # Copies of the prompt's few rows: kept as views they would keep the whole pass's.
        q0, k0, v0 = q0.contiguous(), k0.contiguous(), v0.contiguous()
        before = prefix_attention(q0, k0, v0, scoring)
        after = suffix_attention(q1, k1, v1, (k0, v0), pack.suffixes, scoring)
        return torch.cat([before, after])
