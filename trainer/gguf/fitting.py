"""Whether an adapter fits a base, for whatever only applies it: chat, servers, comparisons, merges.

What trains an adapter further asks more of it (`trainer.gguf.adapter.read_adapter`).
"""

from __future__ import annotations

from trainer.errors import ModelError
from trainer.gguf.adapter import ENDINGS, check_kind, read_alpha, read_pair
from trainer.gguf.file import GgufFile


def check_fits(adapter: GgufFile, base: GgufFile) -> tuple[str, ...]:
    """See that all of an adapter fits ``base``: every factor has its other half, its tensor, and
    the shape for it. Its ranks may differ from tensor to tensor, as llama.cpp takes them.

    The tensors that it adapts, in the base's order. Raises ModelError, which names what does not
    fit.
    """
    check_kind(adapter, base.get("general.architecture", str))
    named = {}
    for name in adapter.tensors:
        target = next((name[: -len(e)] for e in ENDINGS if name.endswith(e)), None)
        if target is None:
            raise ModelError(
                f"{adapter.path}: the tensor {name} is no factor of a LoRA, and leaving it out "
                f"would change the model, so the adapter is not taken."
            )
        named[target] = name
    for target, name in named.items():
        _check_target(adapter, base, target, name)
    targets = tuple(name for name in base.tensors if name in named)
    if not targets:
        raise ModelError(f"{adapter.path}: the adapter holds no factors.")
    read_alpha(adapter)
    for name in targets:
        read_pair(adapter, name, base.tensors[name].shape)
    return targets


def _check_target(adapter: GgufFile, base: GgufFile, target: str, name: str) -> None:
    if target == "token_embd.weight":
        raise ModelError(
            f"{adapter.path}: {name} adapts the embedding, which llama.cpp applies in its own way "
            f"and retrograd does not take: leave the embedding out of the adapter's targets."
        )
    if target == "output.weight" and target not in base.tensors:
        raise ModelError(
            f"{adapter.path}: {name} adapts the output matrix, and in {base.path} that is the "
            f"embedding, to which llama.cpp applies no such adapter: it was made for another model."
        )
    if target not in base.tensors:
        raise ModelError(
            f"{adapter.path}: {name} adapts {target}, and {base.path} has no such tensor: the "
            f"adapter was made for another model."
        )
    if len(base.tensors[target].shape) not in (2, 3):
        raise ModelError(
            f"{adapter.path}: {name} adapts {target}, which is no matrix in {base.path}."
        )
