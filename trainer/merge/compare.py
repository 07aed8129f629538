"""Whether a merged model computes in llama.cpp what base and adapter do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from trainer.chat.vocabulary import Vocabulary
from trainer.errors import TrainingError
from trainer.gguf.file import GgufFile
from trainer.llama.native import gpu_available
from trainer.merge.plan import Plan
from trainer.rollout.answers import SamplingSettings
from trainer.rollout.engine import RolloutEngine

TOKENS: Final = 32
_TEXT = (
    "The quick brown fox jumps over the lazy dog. Seven plus five is twelve, and the capital of "
    "France is Paris. def add(a, b): return a + b"
)
_WIDE = ("F32", "F16", "BF16")
_GAP_LIMITS: Final = {True: 0.05, False: 0.5}
_KEEPS_QUALITY = (*_WIDE, "Q8_0")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Nats a token, averaged over ``tokens`` and, by probability, over the vocabulary. ``gap``:
    between the merged model and base with adapter; ``change``: between that and the base alone.
    ``exact`` tells whether all of them compute with floats: a quantised matrix is multiplied with
    8-bit activations, which is worth some hundredths by itself."""

    tokens: int
    change: float
    gap: float
    exact: bool


def compare(plan: Plan, merged: Path, *, threads: int) -> Comparison | None:
    """Let llama.cpp read a text with both; None for a model without a vocabulary.

    Raises TrainingError where the merged model's log-probabilities are not finite, or, if its types
    hold weights to 8 bits and more, farther off than rounding explains.
    """
    base, adapter = plan.factors.base.path, plan.factors.file.path
    if not plan.factors.base.tokens:
        return None
    with _open(base, threads) as engine:
        tokens = _tokens(engine.vocabulary)
        alone = _logprobs(engine, tokens)
        engine.swap_adapter(adapter)
        wanted = _logprobs(engine, tokens)
    with _open(merged, threads) as engine:
        found = _logprobs(engine, tokens)
    types = {*plan.factors.base.type_counts(), *(made := GgufFile(merged).type_counts())}
    result = Comparison(
        len(tokens), _mean(wanted, alone), _mean(wanted, found), types <= set(_WIDE)
    )
    _judge(result, merged, fine=made.keys() <= set(_KEEPS_QUALITY))
    return result


def _judge(result: Comparison, merged: Path, *, fine: bool) -> None:
    if not np.isfinite(result.gap):
        raise TrainingError(
            f"{merged}: the merged model's log-probabilities are not finite, so it is of no use. "
            f"Merge to f32 or bf16, which hold larger numbers than f16; if that is no better, the "
            f"adapter itself is broken."
        )
    limit = _GAP_LIMITS[result.exact]
    if fine and result.gap > limit:
        raise TrainingError(
            f"{merged}: the merged model's log-probabilities differ by {result.gap:.3g} nats from "
            f"those of base and adapter, where at most {limit} is rounding. Please report it."
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


def _logprobs(engine: RolloutEngine, tokens: list[int]) -> npt.NDArray[np.float64]:
    logits = engine.logits(tokens).astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    return logits


def _mean(wanted: npt.NDArray[np.float64], found: npt.NDArray[np.float64]) -> float:
    """By probability, or the tokens that nobody draws would drown the rest."""
    return float((np.exp(wanted) * np.abs(wanted - found)).sum(-1).mean())
