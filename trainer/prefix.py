"""What several prompts begin with alike, which sampler and trainer both compute only once."""

from __future__ import annotations

from collections.abc import Sequence


def shared_prefix(prompts: Sequence[Sequence[int]]) -> int:
    """How many tokens all ``prompts`` (at least one) begin with alike."""
    # In dictionary order the first and the last differ no later than any other two.
    first, last = min(prompts, key=tuple), max(prompts, key=tuple)
    different = (i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return next(different, min(len(first), len(last)))
