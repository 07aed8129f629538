"""What fits into memory: the automatic values of the settings that trade memory for speed."""

from __future__ import annotations

import math
import os

import psutil

from trainer.gguf.architecture import Architecture
from trainer.gguf.tensors import required_shapes

_AUTO_ROWS = (256, 560)
_AUTO_CONCURRENCY = 32
_SHARE = 0.25
_FLOAT = 4


def default_threads() -> int:
    """The physical cores that this process may use: hyper-threads slow matrix products down."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(psutil.cpu_count(logical=False) or 1, allowed or 1))


def available_bytes() -> int:
    return int(psutil.virtual_memory().available)


def trained_weights_bytes(a: Architecture) -> int:
    """The base in F32, as the trainer holds it."""
    matrices = (shape for shape in required_shapes(a).values() if len(shape) > 1)
    return _FLOAT * sum(map(math.prod, matrices))


def activation_bytes(a: Architecture, rows: int, *, recompute: bool) -> int:
    """What one pass of ``rows`` keeps for its backward half (an estimate from the tensors that the
    layers save; attention over a long prompt adds to it)."""
    attention = 3 * a.query_width + 4 * a.kv_width
    if a.family.head_norms != "none":
        attention += a.query_width + 2 * a.kv_width
    norms_after = 0 if a.family.norms == "before" else 2 * a.width
    feed_forward = 2 * a.ff_width
    if a.experts:
        feed_forward = a.width + 2 * a.experts.used * (a.width + a.experts.width)
    layer = 2 * a.width + attention + norms_after + feed_forward
    kept = a.width * a.layers + layer if recompute else layer * a.layers
    return _FLOAT * rows * kept


def cache_bytes(a: Architecture, cells: int, *, exact: bool) -> int:
    """llama.cpp's key/value cache of ``cells`` tokens."""
    return cells * a.layers * 2 * a.kv_width * (4 if exact else 2)


def auto_micro_batch(a: Architecture, *, recompute: bool) -> int:
    """Rows of a pass whose activations take a quarter of the free memory, 256 to 560: with more
    rows the matrix products gain little."""
    row = activation_bytes(a, 1, recompute=recompute)
    low, high = _AUTO_ROWS
    return max(low, min(high, int(available_bytes() * _SHARE) // row))


def auto_concurrency(a: Architecture, *, answers: int, tokens: int, exact: bool) -> int:
    """Answers generated at once: as many as the update has, at most 32, and as few as their cache
    of ``tokens`` each needs to stay within a quarter of the free memory."""
    each = max(1, cache_bytes(a, tokens, exact=exact))
    fitting = math.floor(available_bytes() * _SHARE / each)
    return max(1, min(_AUTO_CONCURRENCY, answers, fitting))
