"""What the metadata says about positions: rotary embedding and windows, layer by layer."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from trainer.errors import ModelError
from trainer.gguf.families import Family, Pairs
from trainer.gguf.file import GgufFile

_DEFAULT_BASE = 10_000.0


@dataclass(frozen=True, slots=True)
class Yarn:
    """YaRN's way to positions beyond the ``context`` of the first training: pairs that turn
    ``fast`` times and more in it turn as before, those that turn ``slow`` times and less by the
    rotary's scale."""

    context: int
    fast: float = 32.0
    slow: float = 1.0


@dataclass(frozen=True, slots=True)
class Rotary:
    """Rotary embedding of the first ``size`` numbers of a head, turned together in ``pairs``.

    ``base`` is the base of the angles and ``scale`` what positions are multiplied with (1 without
    scaling); with ``yarn``, only those of slow pairs are. The turned numbers are multiplied with
    ``amplitude``. ``factors`` tells that tensors of the file may divide the angles.
    """

    pairs: Pairs
    size: int
    base: float
    scale: float
    amplitude: float
    factors: bool
    yarn: Yarn | None = None


@dataclass(frozen=True, slots=True)
class LayerKind:
    """How the attention of one layer sees positions. ``rotary`` is None where it does not turn
    anything; a row of a layer with a ``window`` sees itself and the window − 1 rows before."""

    rotary: Rotary | None
    window: int | None


def read_kinds(
    file: GgufFile, name: str, family: Family, layers: int, head_size: int
) -> tuple[LayerKind, ...]:
    """The kind of each layer. Raises ModelError for what is not computed."""
    everywhere = _read_rotary(file, name, family, head_size)
    _check_local_sizes(file, name, head_size, everywhere.size)
    window = _window(file, name, family)
    local = _local_layers(file, name, family, layers) if window else [False] * layers
    near = LayerKind(_local_rotary(file, name, family, everywhere), window)
    far = LayerKind(everywhere, None)
    blind = LayerKind(None, None)

    def kind(layer: int) -> LayerKind:
        if not _turns(file, name, family, layer):
            return blind
        return near if local[layer] else far

    return tuple(kind(layer) for layer in range(layers))


def _read_rotary(file: GgufFile, name: str, family: Family, head_size: int) -> Rotary:
    size = file.get(f"{name}.rope.dimension_count", int, head_size)
    fitting = size == head_size or (family.rotary_part and 0 < size < head_size)
    if not fitting or size % 2:
        raise ModelError(
            f"{file.path}: {name}.rope.dimension_count = {size}; the rotary size must be the head "
            f"size {head_size}"
            + (" or less, and" if family.rotary_part else ", and")
            + " an even number."
        )
    kind, scale = _scaling(file, name, family)
    amplitude = file.get(f"{name}.rope.scaling.attn_factor", float, 1.0)
    yarn = None
    if kind == "yarn":
        trained = file.get(f"{name}.context_length", int)
        yarn = Yarn(file.get(f"{name}.rope.scaling.original_context_length", int, trained))
        # Peng et al., "YaRN", arXiv 2309.00071, section 3.4: sharper attention in longer texts.
        amplitude *= 1.0 + 0.1 * max(0.0, -math.log(scale))
    return Rotary(
        pairs=family.pairs,
        size=size,
        base=file.get(f"{name}.rope.freq_base", float, _DEFAULT_BASE),
        scale=scale,
        amplitude=amplitude,
        factors=family.factors != "none",
        yarn=yarn,
    )


def _scaling(file: GgufFile, name: str, family: Family) -> tuple[str, float]:
    """Its kind, and what positions are multiplied with."""
    kind = file.get(f"{name}.rope.scaling.type", str, "linear")
    older = file.get(f"{name}.rope.scale_linear", float, 0.0)
    factor = file.get(f"{name}.rope.scaling.factor", float, older)
    known = ["none", "linear"]
    known += ["longrope"] if family.factors == "by length" else []
    # llama.cpp would stretch local layers by the whole model's factor, and scale them by their own.
    known += ["yarn"] if family.local_rotary != "own" else []
    if kind not in known:
        raise ModelError(
            f"{file.path}: rotary scaling of type {kind!r} is not supported for {name} "
            f"({', '.join(known[1:])} and factors in tensors are)."
        )
    if factor < 0:
        raise ModelError(f"{file.path}: {name}.rope.scaling.factor = {factor:g} is negative.")
    return kind, 1.0 / factor if kind != "none" and factor else 1.0


def _local_rotary(file: GgufFile, name: str, family: Family, everywhere: Rotary) -> Rotary:
    if family.local_rotary == "unscaled":
        return replace(everywhere, scale=1.0, amplitude=1.0, yarn=None)
    own = family.local_rotary == "own"
    base = _DEFAULT_BASE if own else everywhere.base
    return replace(
        everywhere,
        base=file.get(f"{name}.rope.freq_base_swa", float, base),
        scale=1.0 if own else everywhere.scale,
    )


def _window(file: GgufFile, name: str, family: Family) -> int:
    """The window of local layers; 0 where there is none, or where llama.cpp does not read it."""
    if family.window is None:
        return 0
    window = file.get(f"{name}.attention.sliding_window", int, family.window)
    if window < 0:
        raise ModelError(f"{file.path}: {name}.attention.sliding_window = {window} is negative.")
    return window


def _check_local_sizes(file: GgufFile, name: str, head_size: int, rotary_size: int) -> None:
    sizes = {
        "attention.key_length_swa": head_size,
        "attention.value_length_swa": head_size,
        "rope.dimension_count_swa": rotary_size,
    }
    for suffix, size in sizes.items():
        if (own := file.get(f"{name}.{suffix}", int, size)) != size:
            raise ModelError(
                f"{file.path}: {name}.{suffix} = {own}, and other layers have {size}; sizes that "
                f"differ from layer to layer are not supported."
            )


def _local_layers(file: GgufFile, name: str, family: Family, layers: int) -> list[bool]:
    key = f"{name}.attention.sliding_window_pattern"
    stated = file.metadata.get(key)
    if isinstance(stated, list):
        if len(stated) < layers:
            raise ModelError(
                f"{file.path}: {key} has {len(stated)} values for {layers} layers; the file is "
                f"incomplete."
            )
        return [bool(value) for value in stated[:layers]]
    period = file.get(key, int, family.period)
    return [period == 0 or layer % period < period - 1 for layer in range(layers)]


def _turns(file: GgufFile, name: str, family: Family, layer: int) -> bool:
    if family.plain_every and (layer + 1) % family.plain_every == 0:
        return False
    # Granite's files say with this key whether the model has rotary embedding at all.
    return not family.stated_scales or bool(
        file.metadata.get(f"{name}.rope.scaling.finetuned", True)
    )
