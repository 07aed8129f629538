"""A short description of any GGUF file, supported or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from trainer.errors import ModelError
from trainer.gguf.architecture import Architecture, describe
from trainer.gguf.file import GgufFile
from trainer.gguf.tensors import check_tensors, layer_shapes, short_name, unreadable


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """``targets`` counts the adapted matrices by alias (or by tensor name without one). ``rank`` is
    the smallest and largest rank: llama.cpp scales each matrix by alpha over its own."""

    kind: str
    rank: tuple[int, int]
    alpha: float
    targets: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class FileReport:
    """``sizes`` are the decoder's dimensions by name; ``supported`` tells whether retrograd can
    train on the file (always false for an adapter), and ``reason`` why not. ``decoder`` is the
    description of a supported model, and ``candidates`` the shape of each matrix of a layer that
    can be trained, by the name for [lora] targets. ``special`` tokens are (id, text) by use."""

    path: Path
    kind: Literal["model", "adapter"]
    architecture: str
    name: str
    parameters: int
    file_bytes: int
    types: Mapping[str, int]
    sizes: Mapping[str, str] = field(default_factory=dict)
    decoder: Architecture | None = None
    candidates: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    chat_template: bool = False
    special: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    adapter: AdapterFacts | None = None
    supported: bool = False
    reason: str | None = None


def inspect_file(path: Path) -> FileReport:
    """Read the header of ``path``. Raises ModelError when it is not a whole GGUF file."""
    file = GgufFile(path)
    is_adapter = file.text("general.type") == "adapter"
    decoder: Architecture | None = None
    reason: str | None = "an adapter: name its base in [model] path"
    if not is_adapter:
        decoder, reason = _decoder(file)
    return FileReport(
        path=path,
        kind="adapter" if is_adapter else "model",
        architecture=file.text("general.architecture") or "none",
        name=file.text("general.name") or "",
        parameters=sum(t.count for t in file.tensors.values()),
        file_bytes=path.stat().st_size,
        types=file.type_counts(),
        sizes={} if is_adapter else _sizes(file),
        decoder=decoder,
        candidates=_candidates(decoder) if decoder else {},
        chat_template=bool(file.text("tokenizer.chat_template")),
        special=_special(file),
        adapter=_adapter(file) if is_adapter else None,
        supported=reason is None,
        reason=reason,
    )


def _decoder(file: GgufFile) -> tuple[Architecture | None, str | None]:
    """The description of a model that can be trained, or the reason why it cannot be."""
    try:
        described = describe(file)
        check_tensors(file, described)
    except ModelError as error:
        return None, str(error).removeprefix(f"{file.path}: ")
    if bad := unreadable(file):
        return None, f"tensors of types that cannot be read: {', '.join(bad[:5])}"
    return described, None


def _candidates(a: Architecture) -> dict[str, tuple[int, ...]]:
    return {short_name(part): shape for part, shape in layer_shapes(a).items()}


def _special(file: GgufFile) -> dict[str, tuple[int, str]]:
    """The tokens that the metadata gives a use: ``bos``, ``eos``, and so on."""
    found: dict[str, tuple[int, str]] = {}
    for key, value in file.metadata.items():
        use = key.removeprefix("tokenizer.ggml.").removesuffix("_token_id")
        if key != f"tokenizer.ggml.{use}_token_id" or not isinstance(value, int):
            continue
        known = 0 <= value < len(file.tokens)
        found[use] = (value, file.tokens[value].decode("utf-8", "replace") if known else "")
    return found


def _sizes(file: GgufFile) -> dict[str, str]:
    """The dimensions that the metadata names, whatever the architecture."""
    architecture = file.text("general.architecture")
    keys = {
        "layers": "block_count",
        "width": "embedding_length",
        "feed-forward width": "feed_forward_length",
        "query heads": "attention.head_count",
        "key/value heads": "attention.head_count_kv",
        "trained context": "context_length",
        "rotary base": "rope.freq_base",
        "experts": "expert_count",
    }
    found = {title: file.metadata.get(f"{architecture}.{key}") for title, key in keys.items()}
    return {title: f"{value:g}" for title, value in found.items() if isinstance(value, int | float)}


def _adapter(file: GgufFile) -> AdapterFacts:
    # Of lora_b: a rank of 1 is stored without its extent of 1 in lora_a.
    ranks = [
        t.shape[-1] if len(t.shape) > 1 else 1
        for name, t in file.tensors.items()
        if name.endswith(".lora_b")
    ]
    if not ranks:
        raise ModelError(f"{file.path}: this adapter holds no lora_a tensor; it adapts nothing.")
    targets: dict[str, int] = {}
    for name in file.tensors:
        if name.endswith(".lora_a"):
            tensor = name.removesuffix(".lora_a")
            parts = tensor.split(".")
            target = short_name(parts[2]) if parts[0] == "blk" else tensor
            targets[target] = targets.get(target, 0) + 1
    alpha = file.get("adapter.lora.alpha", float, 0.0)
    kind = file.text("adapter.type") or "unknown"
    return AdapterFacts(kind, (min(ranks), max(ranks)), alpha, targets)
