"""The tensors of a model: which there must be, with which shapes, and which LoRA can train.

Names and row order are the file's own. The query and key rows of a ``llama`` file are stored for
interleaved rotary embedding, and stay so: nothing is permuted between file, torch and adapter.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence

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


def layer_shapes(a: Architecture) -> dict[str, tuple[int, int]]:
    """The (outputs, inputs) of each matrix of a layer, by its name inside the block."""
    return {
        "attn_q": (a.query_width, a.width),
        "attn_k": (a.kv_width, a.width),
        "attn_v": (a.kv_width, a.width),
        "attn_output": (a.width, a.query_width),
        "ffn_gate": (a.ff_width, a.width),
        "ffn_up": (a.ff_width, a.width),
        "ffn_down": (a.width, a.ff_width),
    }


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
        for part, shape in layer_shapes(a).items():
            shapes[weight_name(layer, part)] = shape
        shapes[weight_name(layer, "attn_norm")] = (a.width,)
        shapes[weight_name(layer, "ffn_norm")] = (a.width,)
    return shapes


def optional_shapes(a: Architecture) -> dict[str, tuple[int, ...]]:
    """Tensors that some files carry: biases of the matrices and rotary factors."""
    shapes: dict[str, tuple[int, ...]] = {"rope_freqs.weight": (a.head_size // 2,)}
    for layer in range(a.layers):
        for part, (rows, _) in layer_shapes(a).items():
            shapes[f"blk.{layer}.{part}.bias"] = (rows,)
    return shapes


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

    In the file's order. Raises ConfigError when a target matches nothing, listing the candidates.
    """
    candidates = [weight_name(i, part) for i in range(a.layers) for part in layer_shapes(a)]
    wanted: set[str] = set()
    for target in targets:
        matched = fnmatch.filter(candidates, _pattern(target))
        if not matched:
            raise ConfigError(
                f"[lora] targets: {target!r} matches no matrix of this model. Use one of "
                f"{', '.join(ALIASES)}, or a pattern over {candidates[0]} … {candidates[-1]}."
            )
        wanted.update(matched)
    return [name for name in candidates if name in wanted]


def _pattern(target: str) -> str:
    if target == "auto":
        return "*"
    return f"blk.*.{ALIASES[target]}.weight" if target in ALIASES else target
