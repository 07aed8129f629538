"""Whether a merged model computes in llama.cpp what base and adapter do."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from trainer.chat.vocabulary import Vocabulary
from trainer.errors import TrainingError
from trainer.gguf.file import GgufFile
from trainer.llama.native import gpu_available
from trainer.merge.plan import Plan
from trainer.rollout.answers import SamplingSettings
from trainer.rollout.engine import RolloutEngine
from trainer.rollout.nats import GAP_LIMITS, logprobs, mean_nats, merge_limit
from trainer.rollout.weights import WeightsKind

TOKENS: Final = 32
_TEXT = (
    "The quick brown fox jumps over the lazy dog. Seven plus five is twelve, and the capital of "
    "France is Paris. def add(a, b): return a + b"
)
_WIDE = {"F32", "F16", "BF16"}
_KEEPS_QUALITY = {*_WIDE, "Q8_0"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Nats a token, averaged over ``tokens`` and, by probability, over the vocabulary. ``gap``:
    between the merged model and base with adapter; ``change``: between that and the base alone.
    ``exact`` tells whether all of them compute with floats: a quantised matrix is multiplied with
    8-bit activations, which is worth some hundredths by itself. ``is_met`` is false where a coarse
    type has lost half of the change and more."""

    tokens: int
    change: float
    gap: float
    exact: bool
    is_met: bool


def compare(plan: Plan, merged: Path, *, threads: int) -> Comparison | None:
    """Let llama.cpp read a text with both; None for a model without a vocabulary.

    Raises TrainingError where the merged model's log-probabilities are not finite, or, if its types
    hold weights to 8 bits and more, farther off than rounding explains, or by more than half of the
    change (`merge_limit`): a coarser type may lose that much, which the result tells.
    """
    base, adapter = plan.factors.base.path, plan.factors.file.path
    if not plan.factors.base.tokens:
        return None
    with _open(base, threads) as engine:
        tokens = _tokens(engine.vocabulary)
        alone = logprobs(engine, tokens)
        engine.swap_adapter(adapter)
        wanted = logprobs(engine, tokens)
    with _open(merged, threads) as engine:
        found = logprobs(engine, tokens)
    made = set(GgufFile(merged).type_counts())
    kind = _kind({*plan.factors.base.type_counts(), *made})
    change, gap = mean_nats(wanted - alone, wanted), mean_nats(wanted - found, wanted)
    # To BF16 the weights alone round to about as much as the floor of a small change.
    limit = GAP_LIMITS[kind] if "BF16" in made else merge_limit(change, kind)
    is_coarse = not made <= _KEEPS_QUALITY
    is_met = gap <= limit and not (is_coarse and gap > change)
    result = Comparison(len(tokens), change, gap, kind != "file", is_met)
    _judge(result, merged, limit, is_coarse=is_coarse)
    return result


def _kind(types: AbstractSet[str]) -> WeightsKind:
    """What the coarsest of them computes with."""
    return "f32" if types <= {"F32"} else "f16" if types <= _WIDE else "file"


def _judge(result: Comparison, merged: Path, limit: float, *, is_coarse: bool) -> None:
    if not np.isfinite(result.gap):
        raise TrainingError(
            f"{merged}: the merged model's log-probabilities are not finite, so it is of no use. "
            f"Merge to f32 or bf16, which hold larger numbers than f16; if that is no better, the "
            f"adapter itself is broken."
        )
    if not is_coarse and result.gap > limit:
        raise TrainingError(
            f"{merged}: the merged model's log-probabilities differ by {result.gap:.3g} nats from "
            f"those of base and adapter, where at most {limit:.3g} is rounding, and the adapter "
            f"changes them by {result.change:.3g}. Please report it."
        )


def _tokens(vocabulary: Vocabulary) -> list[int]:
    start = [vocabulary.bos] if vocabulary.adds_bos and vocabulary.bos is not None else []
    return [*start, *vocabulary.tokenize(_TEXT, special=False)][:TOKENS]


def _open(path: Path, threads: int) -> RolloutEngine:
    return RolloutEngine(
        path,
        ctx=2 * TOKENS,
        concurrency=1,
        max_prompt_tokens=TOKENS,
        group_size=1,
        settings=SamplingSettings(1.0, 1.0, 1),
        exact=True,
        threads=threads,
        use_gpu=gpu_available(),
    )
