"""What the metadata of a model file says about its decoder."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.errors import ModelError
from trainer.gguf.file import GgufFile
from trainer.gguf.guard import check_metadata, check_vocabulary

SUPPORTED = ("llama",)
"""Architectures, by llama.cpp's names, that the decoder computes."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """The shape of a decoder.

    ``width`` is the embedding size; ``heads`` query heads share ``kv_heads`` key/value heads of
    ``head_size``, which need not be width / heads. ``rope_base`` is the base of the rotary angles
    and ``rope_scale`` what positions are multiplied with (1 without linear scaling).
    """

    name: str
    layers: int
    width: int
    ff_width: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    norm_epsilon: float
    rope_base: float
    rope_scale: float
    trained_context: int
    tied: bool

    @property
    def attention_scale(self) -> float:
        """What query-key products are multiplied with."""
        return float(self.head_size**-0.5)

    @property
    def query_width(self) -> int:
        return self.heads * self.head_size

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_size


def describe(file: GgufFile) -> Architecture:
    """Read the description of a supported model; ModelError says what is not supported."""
    name = _check_kind(file)
    check_metadata(file, name)
    check_vocabulary(file)

    def key(suffix: str) -> str:
        return f"{name}.{suffix}"

    width = file.get(key("embedding_length"), int)
    heads = file.get(key("attention.head_count"), int)
    head_size = file.get(key("attention.key_length"), int, width // max(heads, 1))
    architecture = Architecture(
        name=name,
        layers=file.get(key("block_count"), int),
        width=width,
        ff_width=file.get(key("feed_forward_length"), int),
        heads=heads,
        kv_heads=file.get(key("attention.head_count_kv"), int, heads),
        head_size=head_size,
        vocabulary=_embedding_rows(file),
        norm_epsilon=file.get(key("attention.layer_norm_rms_epsilon"), float),
        rope_base=file.get(key("rope.freq_base"), float, 10_000.0),
        rope_scale=_rope_scale(file, name),
        trained_context=file.get(key("context_length"), int),
        tied="output.weight" not in file.tensors,
    )
    _check_shape(file, architecture)
    return architecture


def _check_kind(file: GgufFile) -> str:
    name = file.get("general.architecture", str)
    if file.text("general.type") == "adapter":
        raise ModelError(
            f"{file.path}: this is an adapter, and a whole model is expected. Put the base model's "
            f"file into [model] path."
        )
    if name not in SUPPORTED:
        raise ModelError(
            f"{file.path}: the architecture {name!r} is not supported; retrograd trains "
            f"{', '.join(SUPPORTED)}."
        )
    if file.get("split.count", int, 0) > 1:
        raise ModelError(
            f"{file.path}: this is one part of a model in {file.metadata['split.count']} files. "
            f"Join them first: llama-gguf-split --merge FIRST_PART.gguf WHOLE.gguf"
        )
    if file.get(f"{name}.expert_count", int, 0) > 0:
        raise ModelError(
            f"{file.path}: this {name} model is a mixture of experts, which is not supported."
        )
    return name


def _embedding_rows(file: GgufFile) -> int:
    if "token_embd.weight" not in file.tensors:
        raise ModelError(f"{file.path}: there is no tensor token_embd.weight; not a whole model.")
    return file.tensors["token_embd.weight"].shape[0]


def _rope_scale(file: GgufFile, name: str) -> float:
    kind = file.get(f"{name}.rope.scaling.type", str, "linear")
    older = file.get(f"{name}.rope.scale_linear", float, 0.0)
    factor = file.get(f"{name}.rope.scaling.factor", float, older)
    if kind not in ("none", "linear"):
        raise ModelError(
            f"{file.path}: rotary scaling of type {kind!r} is not supported (linear and rope_freqs "
            f"are)."
        )
    if file.get(f"{name}.rope.scaling.attn_factor", float, 1.0) != 1.0:
        raise ModelError(f"{file.path}: scaled rotary attention (attn_factor) is not supported.")
    return 1.0 / factor if kind == "linear" and factor else 1.0


def _check_shape(file: GgufFile, a: Architecture) -> None:
    name = a.name
    rotary = file.get(f"{name}.rope.dimension_count", int, a.head_size)
    value_size = file.get(f"{name}.attention.value_length", int, a.head_size)
    if min(a.layers, a.width, a.ff_width, a.heads, a.kv_heads, a.head_size) < 1:
        raise ModelError(f"{file.path}: a size in the metadata is zero or negative: {a}.")
    if a.heads % a.kv_heads:
        raise ModelError(
            f"{file.path}: {a.heads} query heads cannot share {a.kv_heads} key/value heads evenly."
        )
    if rotary != a.head_size or value_size != a.head_size or a.head_size % 2:
        raise ModelError(
            f"{file.path}: head size {a.head_size}, rotary size {rotary} and value size "
            f"{value_size} must be one even number for the architecture {name}."
        )
