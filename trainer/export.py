"""Writing the trained adapter, and proving that what was written is what was trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from trainer.errors import TrainingError
from trainer.gguf.adapter import AdapterDtype, write_adapter
from trainer.model.adapter import Adapter
from trainer.model.decoder import Decoder
from trainer.rollout.engine import RolloutEngine
from trainer.rollout.weights import WeightsKind

GAP_LIMITS: dict[WeightsKind, float] = {"f32": 0.02, "f16": 0.05, "file": 0.5}
"""The largest mean gap of log-probabilities, in nats, that an export may show, by what llama.cpp
computes with. Rounding the adapter to F16 costs up to about 0.01; a quantised base computes with
8-bit activations, which alone costs about 0.06. A wrong scale or order costs whole nats."""


@dataclass(frozen=True, slots=True)
class ExportCheck:
    """``gap``: mean of abs(log-probability difference), llama.cpp against torch, in nats, over all
    tokens and positions of a probe text. ``change``: the same between the adapter and the base."""

    gap: float
    change: float


def write(path: Path, adapter: Adapter, *, dtype: AdapterDtype) -> None:
    """Write the adapter's current factors as a llama.cpp LoRA file."""
    factors = {name: value.numpy() for name, value in adapter.state().items()}
    write_adapter(
        path, factors, architecture=adapter.architecture, alpha=adapter.alpha, dtype=dtype
    )


def verify(
    path: Path,
    tokens: Sequence[int],
    decoder: Decoder,
    adapter: Adapter,
    engine: RolloutEngine,
    weights: WeightsKind,
) -> ExportCheck:
    """Load the file in llama.cpp and compare its log-probabilities on ``tokens`` with torch's.

    Raises TrainingError when they differ by more than the weights' rounding explains; the file is
    left where it is.
    """
    engine.swap_adapter(path)
    theirs = torch.from_numpy(engine.logits(tokens)).log_softmax(-1)
    mine = decoder.logits(tokens, adapter).cpu().log_softmax(-1)
    base = decoder.logits(tokens, None).cpu().log_softmax(-1)
    check = ExportCheck(_gap(theirs, mine), _gap(mine, base))
    if not check.gap <= GAP_LIMITS[weights]:
        raise TrainingError(
            f"{path}: the exported adapter, loaded in llama.cpp, does not compute what was "
            f"trained: log-probabilities differ by {check.gap:.3g} nats on average (the limit on "
            f"{weights} weights is {GAP_LIMITS[weights]}). This is a fault of retrograd or of the "
            f"installed llama.cpp; please report it with this file."
        )
    return check


def _gap(a: Tensor, b: Tensor) -> float:
    """The mean over positions and tokens, each token weighted by its probability under ``b``, so
    that tokens nobody would draw do not drown the rest."""
    return float((b.exp() * (a - b).abs()).sum(-1).mean())
