"""What the metadata of a model file says about its decoder."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.errors import ModelError
from trainer.gguf.families import FAMILIES, MISSING, Family
from trainer.gguf.file import GgufFile
from trainer.gguf.guard import check_metadata, check_vocabulary
from trainer.gguf.rotary import LayerKind, Rotary, read_kinds

SUPPORTED = tuple(FAMILIES)
"""Architectures, by llama.cpp's names, that the decoder computes."""


@dataclass(frozen=True, slots=True)
class Experts:
    """Each row goes through the ``used`` experts that the router likes best of ``count``, which are
    feed-forward networks of ``width``."""

    count: int
    used: int
    width: int


@dataclass(frozen=True, slots=True)
class Scales:
    """What the embedding, what is added to the residual stream, query-key products, and logits are
    multiplied with. ``attention_cap`` and ``logit_cap`` c keep a score s softly within ±c, as
    c · tanh(s / c); None is no limit. The logits' cap comes after their scale."""

    attention: float
    embedding: float = 1.0
    residual: float = 1.0
    logits: float = 1.0
    attention_cap: float | None = None
    logit_cap: float | None = None


@dataclass(frozen=True, slots=True)
class Architecture:
    """The shape of a decoder.

    ``width`` is the embedding size; ``heads`` query heads share ``kv_heads`` key/value heads of
    ``head_size``, which need not be width / heads. ``family`` is what the architecture's name
    stands for, ``kinds`` how each layer sees positions. ``joined_input`` tells that the matrices of
    queries, keys and values are one. ``ff_width`` is 0 where ``experts`` stand in its place.
    ``short_context`` is the longest context that the first of two tensors of rotary factors is
    for, where a file has two.
    """

    name: str
    family: Family
    layers: int
    width: int
    ff_width: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    norm_epsilon: float
    trained_context: int
    short_context: int
    tied: bool
    joined_input: bool
    kinds: tuple[LayerKind, ...]
    experts: Experts | None
    scales: Scales

    @property
    def query_width(self) -> int:
        return self.heads * self.head_size

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_size

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        """The different rotary embeddings of the layers."""
        return tuple(dict.fromkeys(kind.rotary for kind in self.kinds if kind.rotary))


def describe(file: GgufFile) -> Architecture:
    """Read the description of a supported model; ModelError says what is not supported."""
    name = _check_kind(file)
    family = FAMILIES[name]
    check_metadata(file, name)
    check_vocabulary(file)

    def key(suffix: str) -> str:
        return f"{name}.{suffix}"

    layers = file.get(key("block_count"), int)
    width = file.get(key("embedding_length"), int)
    heads = file.get(key("attention.head_count"), int)
    head_size = file.get(key("attention.key_length"), int, width // max(heads, 1))
    trained = file.get(key("context_length"), int)
    architecture = Architecture(
        name=name,
        family=family,
        layers=layers,
        width=width,
        ff_width=0 if family.experts else file.get(key("feed_forward_length"), int),
        heads=heads,
        kv_heads=file.get(key("attention.head_count_kv"), int, heads),
        head_size=head_size,
        vocabulary=_embedding_rows(file),
        norm_epsilon=file.get(key("attention.layer_norm_rms_epsilon"), float),
        trained_context=trained,
        short_context=file.get(key("rope.scaling.original_context_length"), int, trained),
        tied="output.weight" not in file.tensors,
        joined_input="blk.0.attn_qkv.weight" in file.tensors,
        kinds=read_kinds(file, name, family, layers, head_size),
        experts=_experts(file, name) if family.experts else None,
        scales=_scales(file, name, layers, width, heads, head_size),
    )
    _check_shape(file, architecture)
    return architecture


def long_texts(a: Architecture, context: int) -> bool:
    """Whether the second of two tensors of rotary factors is meant for texts of ``context``."""
    return context > a.short_context


def forced_metadata(a: Architecture, context: int) -> dict[str, int]:
    """Metadata to open the model with in llama.cpp, which would otherwise choose between two
    tensors of rotary factors by the size of its whole cache, and not by the longest text."""
    if a.family.factors != "by length":
        return {}
    limit = 1 if long_texts(a, context) else 2**31 - 1
    return {f"{a.name}.rope.scaling.original_context_length": limit}


def _check_kind(file: GgufFile) -> str:
    name = file.get("general.architecture", str)
    if file.text("general.type") == "adapter":
        raise ModelError(
            f"{file.path}: this is an adapter, and a whole model is expected. Name the file of the "
            f"base model here; the adapter goes beside it."
        )
    if name not in FAMILIES:
        lacking = f" (not computed: {MISSING[name]})" if name in MISSING else ""
        raise ModelError(
            f"{file.path}: the architecture {name!r} is not supported{lacking}; retrograd trains "
            f"{', '.join(SUPPORTED)}."
        )
    if file.get("split.count", int, 0) > 1:
        raise ModelError(
            f"{file.path}: this is one part of a model in {file.metadata['split.count']} files. "
            f"Join them first: llama-gguf-split --merge FIRST_PART.gguf WHOLE.gguf"
        )
    if file.get(f"{name}.expert_count", int, 0) > 0 and not FAMILIES[name].experts:
        raise ModelError(
            f"{file.path}: this {name} model is a mixture of experts, which is supported for "
            f"{', '.join(n for n, f in FAMILIES.items() if f.experts)} alone."
        )
    return name


def _embedding_rows(file: GgufFile) -> int:
    if "token_embd.weight" not in file.tensors:
        raise ModelError(f"{file.path}: there is no tensor token_embd.weight; not a whole model.")
    return file.tensors["token_embd.weight"].shape[0]


def _experts(file: GgufFile, name: str) -> Experts:
    used = file.get(f"{name}.expert_used_count", int)
    # As llama.cpp: without a width of its own an expert has its share of the whole.
    whole = file.get(f"{name}.feed_forward_length", int, 0)
    width = file.get(f"{name}.expert_feed_forward_length", int, 0) or whole // max(used, 1)
    experts = Experts(file.get(f"{name}.expert_count", int), used, width)
    if not (0 < experts.used <= experts.count and experts.width > 0):
        raise ModelError(f"{file.path}: the metadata's experts cannot be: {experts}.")
    if file.get(f"{name}.expert_group_count", int, 0) > 1:
        raise ModelError(f"{file.path}: a choice of groups of experts is not supported.")
    return experts


def _scales(
    file: GgufFile, name: str, layers: int, width: int, heads: int, head_size: int
) -> Scales:
    family = FAMILIES[name]

    def stated(suffix: str, otherwise: float) -> float:
        value = file.get(f"{name}.{suffix}", float, 0.0) if family.stated_scales else 0.0
        return value or otherwise

    def cap(suffix: str, usual: float | None) -> float | None:
        return None if usual is None else file.get(f"{name}.{suffix}", float, usual) or None

    divisor = width // max(heads, 1) if layers == family.wide_heads else head_size
    return Scales(
        attention=stated("attention.scale", float(max(divisor, 1) ** -0.5)),
        embedding=stated("embedding_scale", width**0.5 if family.root_scale else 1.0),
        residual=stated("residual_scale", 1.0),
        logits=1.0 / stated("logit_scale", 1.0),
        attention_cap=cap("attn_logit_softcapping", family.attention_cap),
        logit_cap=cap("final_logit_softcapping", family.logit_cap),
    )


def _check_shape(file: GgufFile, a: Architecture) -> None:
    value_size = file.get(f"{a.name}.attention.value_length", int, a.head_size)
    feed_forward = a.experts.width if a.experts else a.ff_width
    if min(a.layers, a.width, feed_forward, a.heads, a.kv_heads, a.head_size) < 1:
        raise ModelError(f"{file.path}: a size in the metadata is zero or negative: {a}.")
    if a.heads % a.kv_heads:
        raise ModelError(
            f"{file.path}: {a.heads} query heads cannot share {a.kv_heads} key/value heads evenly."
        )
    if value_size != a.head_size:
        raise ModelError(
            f"{file.path}: head size {a.head_size} and value size {value_size} must be the same "
            f"for the architecture {a.name}."
        )
