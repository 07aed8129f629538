"""A decoder's description for people: the parts it is put together from, by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from trainer.gguf.architecture import Architecture
from trainer.gguf.rotary import Rotary

_NORMS = {
    "before": "before attention and feed-forward",
    "after": "after attention and feed-forward",
    "around": "before and after attention and feed-forward",
}
_HEAD_NORMS = {
    "none": "",
    "each": "; of queries and keys, over each head",
    "whole": "; of queries and keys, over all heads together",
}
_PAIRS = {"neighbours": "neighbours (2j, 2j + 1)", "halves": "halves (j, j + size / 2)"}


def in_words(a: Architecture) -> dict[str, str]:
    """What the decoder does, by the name of the part; parts that it does not have are left out."""
    rows = {
        "attention": _attention(a),
        "rotary": "; ".join(_rotary(a, rotary) for rotary in a.rotaries) or "none",
        "windows": _windows(a),
        "norms": _NORMS[a.family.norms] + _HEAD_NORMS[a.family.head_norms],
        "feed-forward": _feed_forward(a),
        "scales": ", ".join(_scales(a)),
        "soft caps": ", ".join(_caps(a)),
        "output matrix": "the embedding" if a.tied else "of its own",
    }
    return {title: words for title, words in rows.items() if words}


def _attention(a: Architecture) -> str:
    joined = ", queries, keys and values by one matrix" if a.joined_input else ""
    return f"{a.heads} heads of {a.head_size} on {a.kv_heads} of keys and values{joined}"


def _rotary(a: Architecture, rotary: Rotary) -> str:
    layers = sum(kind.rotary == rotary for kind in a.kinds)
    words = f"base {rotary.base:g}, {_PAIRS[rotary.pairs]}"
    if rotary.size != a.head_size:
        words += f", {rotary.size} of {a.head_size} numbers"
    if rotary.scale != 1:
        words += f", positions × {rotary.scale:.4g}"
    if rotary.yarn:
        words += f" by YaRN beyond {rotary.yarn.context}"
    if rotary.amplitude != 1:
        words += f", amplitude {rotary.amplitude:.4g}"
    return words if layers == a.layers else f"{words} in {layers} of {a.layers} layers"


def _windows(a: Architecture) -> str:
    counts = Counter(kind.window for kind in a.kinds if kind.window)
    return ", ".join(f"{size} tokens in {n} of {a.layers} layers" for size, n in counts.items())


def _feed_forward(a: Architecture) -> str:
    if a.experts:
        network = f"{a.experts.used} of {a.experts.count} experts, {a.experts.width} wide"
    else:
        network = f"{a.ff_width} wide"
    joined = ", gate and up by one matrix" if a.family.joined_gate else ""
    return f"{network}, gated by {a.family.activation}{joined}"


def _scales(a: Architecture) -> Iterator[str]:
    scales = a.scales
    if scales.attention != a.head_size**-0.5:
        yield f"attention × {scales.attention:.4g}"
    named = (
        ("embedding", scales.embedding),
        ("residuals", scales.residual),
        ("logits", scales.logits),
    )
    for name, value in named:
        if value != 1:
            yield f"{name} × {value:.4g}"


def _caps(a: Architecture) -> Iterator[str]:
    if a.scales.attention_cap:
        yield f"attention {a.scales.attention_cap:g}"
    if a.scales.logit_cap:
        yield f"logits {a.scales.logit_cap:g}"
