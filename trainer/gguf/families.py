"""What all models of one architecture have in common: the part of a decoder that no file states.

A family is data. The decoder has a small part for each value below and puts them together, so an
architecture whose parts are all here is one more entry of `FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Pairs = Literal["neighbours", "halves"]
Norms = Literal["before", "after", "around"]
HeadNorms = Literal["none", "each", "whole"]
Activation = Literal["silu", "gelu"]
Factors = Literal["none", "one", "by length"]
LocalRotary = Literal["same", "own", "unscaled"]

_ATTENTION_INPUT = ("attn_q", "attn_k", "attn_v", "attn_qkv")
_EVERY_MATRIX = (*_ATTENTION_INPUT, "attn_output", "ffn_gate", "ffn_up", "ffn_down")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One architecture of llama.cpp's.

    ``pairs``: which numbers of a head rotary embedding turns together, (2j, 2j + 1) or (j, j + half
    of them); the query and key rows of a file are stored for it. ``rotary_part`` tells that fewer
    than all numbers of a head may turn; in every ``plain_every``-th layer none does (0: in all
    layers they do). ``factors`` are tensors that divide the angles: none, one for every text, or
    one of two by the length of the context.

    ``norms`` stand before attention and feed-forward, after them, or both. ``head_norms`` are those
    of queries and keys: none, over each head, or over all heads together.

    ``window`` is that of the local layers where the file names none (0: no layer is local then),
    and None where llama.cpp reads no window. Of ``period`` layers all but the last are local.
    Rotary embedding there is the ``same``, has a base of its ``own``, or is ``unscaled``.

    ``root_scale`` multiplies the embedding with the root of the width; ``stated_scales`` tells that
    the file states factors for embedding, residuals, attention and logits. ``attention_cap`` and
    ``logit_cap`` are soft limits where the file states none (0: no limit), None where llama.cpp
    reads none. In a model of ``wide_heads`` layers attention is scaled by width / heads.

    ``joined_gate`` tells that gate and up are one matrix; ``experts`` that the feed-forward network
    is a choice of several. ``biases`` lists the matrices that may have one.
    """

    pairs: Pairs = "halves"
    rotary_part: bool = False
    plain_every: int = 0
    factors: Factors = "none"
    norms: Norms = "before"
    head_norms: HeadNorms = "none"
    window: int | None = None
    period: int = 1
    local_rotary: LocalRotary = "same"
    root_scale: bool = False
    stated_scales: bool = False
    attention_cap: float | None = None
    logit_cap: float | None = None
    wide_heads: int = 0
    activation: Activation = "silu"
    joined_gate: bool = False
    experts: bool = False
    biases: tuple[str, ...] = _ATTENTION_INPUT


FAMILIES: Mapping[str, Family] = {
    "llama": Family(pairs="neighbours", factors="one", biases=_EVERY_MATRIX),
    "qwen2": Family(),
    "qwen3": Family(head_norms="each"),
    "qwen3moe": Family(head_norms="each", experts=True),
    "gemma2": Family(
        norms="around",
        window=4096,
        period=2,
        root_scale=True,
        attention_cap=50.0,
        logit_cap=30.0,
        wide_heads=46,
        activation="gelu",
    ),
    "gemma3": Family(
        norms="around",
        head_norms="each",
        window=0,
        period=6,
        local_rotary="own",
        root_scale=True,
        logit_cap=0.0,
        wide_heads=62,
        activation="gelu",
    ),
    "phi3": Family(rotary_part=True, factors="by length", joined_gate=True),
    "smollm3": Family(pairs="neighbours", plain_every=4),
    "olmo2": Family(norms="after", head_norms="whole", window=0, period=4, local_rotary="unscaled"),
    "granite": Family(pairs="neighbours", factors="one", stated_scales=True, biases=_EVERY_MATRIX),
}
"""The architectures, by llama.cpp's names, that the decoder computes."""

MISSING: Mapping[str, str] = {
    "qwen35": "its layers of gated delta rule (a recurrent state and a short convolution)",
    "qwen35moe": "its layers of gated delta rule (a recurrent state and a short convolution)",
    "qwen3next": "its layers of gated delta rule (a recurrent state and a short convolution)",
    "lfm2": "its layers of short gated convolution",
    "lfm2moe": "its layers of short gated convolution",
    "gemma3n": "its embeddings for each layer and its several residual streams",
    "gemma4": "its embeddings for each layer, its layers that share keys and values, and its head "
    "sizes that differ from layer to layer",
    "granitehybrid": "its state-space layers",
    "falcon-h1": "its state-space layers",
}
"""What the decoder lacks for architectures that people often ask for."""
