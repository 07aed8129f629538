"""The tensors of a model: which there must be, with which shapes, and which LoRA can train.

Names and row order are the file's own. Query and key rows are stored for the way in which the
architecture's rotary embedding pairs numbers, and stay so: nothing is permuted between file, torch
and adapter.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Mapping, Sequence

from trainer.errors import ConfigError, ModelError
from trainer.gguf.architecture import Architecture
from trainer.gguf.file import GgufFile
from trainer.gguf.guard import check_vectors
from trainer.llama import ggml

ALIASES: Mapping[str, str] = {
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "ffn_up": "ffn_up",
    "ffn_down": "ffn_down",
    "ffn_gate": "ffn_gate",
}
"""The seven targets of a layer, by the names of [lora] targets."""


_STANDS_IN = {
    "attn_q": "attn_qkv",
    "attn_k": "attn_qkv",
    "attn_v": "attn_qkv",
    "ffn_gate": "ffn_up",
}
"""The matrix that holds another one's rows in models that join them."""


def layer_shapes(a: Architecture) -> dict[str, tuple[int, ...]]:
    """The (outputs, inputs) of each matrix of a layer that can be trained, by its name inside the
    block; (experts, outputs, inputs) where each expert has one."""
    return _attention_shapes(a) | _feed_forward_shapes(a)


def _attention_shapes(a: Architecture) -> dict[str, tuple[int, ...]]:
    output = {"attn_output": (a.width, a.query_width)}
    if a.joined_input:
        return {"attn_qkv": (a.query_width + 2 * a.kv_width, a.width), **output}
    return {
        "attn_q": (a.query_width, a.width),
        "attn_k": (a.kv_width, a.width),
        "attn_v": (a.kv_width, a.width),
        **output,
    }


def _feed_forward_shapes(a: Architecture) -> dict[str, tuple[int, ...]]:
    if a.experts:
        count, inner = a.experts.count, a.experts.width
        return {
            "ffn_gate_exps": (count, inner, a.width),
            "ffn_up_exps": (count, inner, a.width),
            "ffn_down_exps": (count, a.width, inner),
        }
    gate_and_up = (
        {"ffn_up": (2 * a.ff_width, a.width)}
        if a.family.joined_gate
        else {"ffn_gate": (a.ff_width, a.width), "ffn_up": (a.ff_width, a.width)}
    )
    return {**gate_and_up, "ffn_down": (a.width, a.ff_width)}


def frozen_shapes(a: Architecture) -> dict[str, tuple[int, ...]]:
    """What else a layer holds and nothing trains: its norms, and the router of experts."""
    shapes: dict[str, tuple[int, ...]] = {}
    if a.family.norms != "after":
        shapes |= {"attn_norm": (a.width,), "ffn_norm": (a.width,)}
    if a.family.norms != "before":
        shapes |= {"post_attention_norm": (a.width,), "post_ffw_norm": (a.width,)}
    if a.family.head_norms == "each":
        shapes |= {"attn_q_norm": (a.head_size,), "attn_k_norm": (a.head_size,)}
    if a.family.head_norms == "whole":
        shapes |= {"attn_q_norm": (a.query_width,), "attn_k_norm": (a.kv_width,)}
    if a.experts:
        shapes["ffn_gate_inp"] = (a.experts.count, a.width)
    return shapes


def weight_name(layer: int, part: str) -> str:
    return f"blk.{layer}.{part}.weight"


def required_shapes(a: Architecture) -> dict[str, tuple[int, ...]]:
    """Every tensor that the decoder needs, with its row-major shape."""
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (a.vocabulary, a.width),
        "output_norm.weight": (a.width,),
    }
    if not a.tied:
        shapes["output.weight"] = (a.vocabulary, a.width)
    for layer in range(a.layers):
        for part, shape in (layer_shapes(a) | frozen_shapes(a)).items():
            shapes[weight_name(layer, part)] = shape
    return shapes


def optional_shapes(a: Architecture) -> dict[str, tuple[int, ...]]:
    """Tensors that some files carry: biases of the matrices and rotary factors."""
    shapes: dict[str, tuple[int, ...]] = {
        name: (rotary.size // 2,)
        for rotary in a.rotaries
        for name in factor_names(a)
        if rotary.factors
    }
    for layer in range(a.layers):
        for part, shape in layer_shapes(a).items():
            if part in a.family.biases:
                shapes[f"blk.{layer}.{part}.bias"] = shape[:1]
    return shapes


def factor_names(a: Architecture) -> tuple[str, ...]:
    """The tensors that may divide rotary angles; the second of two is for long contexts."""
    if a.family.factors == "by length":
        return ("rope_factors_short.weight", "rope_factors_long.weight")
    return ("rope_freqs.weight",) if a.family.factors == "one" else ()


def check_tensors(file: GgufFile, a: Architecture) -> None:
    """Refuse a file whose tensors are not those of the architecture. Raises ModelError."""
    required, optional = required_shapes(a), optional_shapes(a)
    missing = [name for name in required if name not in file.tensors]
    if missing:
        raise ModelError(
            f"{file.path}: {len(missing)} tensors are missing, first {missing[0]}; the file does "
            f"not hold the whole model."
        )
    foreign = [name for name in file.tensors if name not in required and name not in optional]
    if foreign:
        raise ModelError(
            f"{file.path}: tensor {foreign[0]} ({len(foreign)} such) is not part of a plain "
            f"{a.name} decoder, and leaving it out would change the model. Not supported."
        )
    for name, shape in (required | optional).items():
        if name in file.tensors and file.tensors[name].shape != shape:
            raise ModelError(
                f"{file.path}: tensor {name} has shape {file.tensors[name].shape}, and the "
                f"metadata promises {shape}."
            )
    check_vectors(file)


def unreadable(file: GgufFile) -> list[str]:
    """Names, with types, of the tensors that cannot be turned into floats."""
    return [
        f"{t.name} ({t.type_name})"
        for t in file.tensors.values()
        if not ggml.can_dequantise(t.kind)
    ]


def select_targets(a: Architecture, targets: Sequence[str]) -> list[str]:
    """The weight names that ``targets`` (aliases, tensor patterns, or ``auto``) stand for.

    An alias of a matrix that this model joins with others stands for the joined one, and those of a
    feed-forward network for its experts'. In the file's order. Raises ConfigError when a target
    matches nothing, listing the candidates.
    """
    parts = layer_shapes(a)
    candidates = [weight_name(i, part) for i in range(a.layers) for part in parts]
    wanted: set[str] = set()
    for target in targets:
        matched = fnmatch.filter(candidates, _pattern(target, parts))
        if not matched:
            raise ConfigError(
                f"[lora] targets: {target!r} matches no matrix of this model. Use one of "
                f"{', '.join(ALIASES)}, or a pattern over {candidates[0]} … {candidates[-1]}."
            )
        wanted.update(matched)
    return [name for name in candidates if name in wanted]


def _pattern(target: str, parts: Collection[str]) -> str:
    if target == "auto":
        return "*"
    if target not in ALIASES:
        return target
    part = ALIASES[target]
    found = (p for p in (part, f"{part}_exps", _STANDS_IN.get(part, part)) if p in parts)
    return f"blk.*.{next(found, part)}.weight"


def short_name(part: str) -> str:
    """The alias of a matrix inside a block, or its own name where it has none."""
    return next((alias for alias, name in ALIASES.items() if name == part), part)
