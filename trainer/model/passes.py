"""Cutting the answers of a group into passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from trainer.errors import ConfigError
from trainer.model.packing import packed_rows

Fanout = Literal["auto", "off", "max"] | int


@dataclass(frozen=True, slots=True)
class PassPlan:
    """``passes`` are the answers' indices, pass by pass. ``reason`` says why fewer answers share a
    pass than was wished; None when the wish was met."""

    passes: tuple[tuple[int, ...], ...]
    reason: str | None


def plan_passes(
    prompt: int, lengths: Sequence[int], *, micro_batch: int, fanout: Fanout
) -> PassPlan:
    """Pack answers of ``lengths`` tokens on a prompt of ``prompt`` tokens into passes.

    A pass holds at most ``micro_batch`` rows and ``fanout`` answers; ``off`` puts one answer in
    each. Nor is the block larger that its answers are padded to, since attention pays for padding.
    One answer alone always makes a pass: its rows cannot be cut. Longer answers first, so that a
    pass holds answers of like length and little of its attention is padding.

    Raises ConfigError when an explicit number, or ``max``, cannot be met.
    """
    if not lengths:
        return PassPlan((), None)
    most = {"off": 1, "auto": len(lengths), "max": len(lengths)}.get(str(fanout), fanout)
    wished = min(int(most), len(lengths))
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    passes = _fill(prompt, lengths, order, micro_batch, wished)
    # As many passes, but of like size: the largest one decides how much memory is taken.
    even = _fill(prompt, lengths, order, micro_batch, -(-len(lengths) // len(passes)))
    if len(even) == len(passes) and not isinstance(fanout, int):
        passes = even
    reason = None
    if len(passes) > -(-len(lengths) // wished):
        needed = packed_rows(prompt, [lengths[i] for i in order[:wished]])
        reason = (
            f"{wished} answers on a prompt of {prompt} tokens need a pass of {needed} tokens, and "
            f"training.micro_batch allows {micro_batch}"
        )
        if fanout == "max" or isinstance(fanout, int):
            raise ConfigError(
                f"[training] shared_prefix_fanout = {fanout!r} cannot be met: {reason}. Raise "
                f'micro_batch, or set shared_prefix_fanout to "auto".'
            )
    return PassPlan(tuple(tuple(p) for p in passes), reason)


def plan_apart(
    prefix: int, lengths: Sequence[int], *, micro_batch: int, fanout: Fanout
) -> tuple[tuple[int, ...], ...]:
    """Cut texts of ``lengths`` tokens, prompt and answer together, of which the first ``prefix``
    are alike, into passes as `plan_passes` does. What they share is short, so ``fanout`` is no more
    than a bound here: ``off`` puts one text in each pass, a number that many, and ``max`` is
    ``auto``."""
    own = [n - prefix for n in lengths]
    order = sorted(range(len(own)), key=lambda i: (-own[i], i))
    most = 1 if fanout == "off" else fanout if isinstance(fanout, int) else len(own)
    passes = _fill(prefix, own, order, micro_batch, most)
    even = _fill(prefix, own, order, micro_batch, -(-len(own) // len(passes)))
    return tuple(tuple(p) for p in (even if len(even) == len(passes) else passes))


def _fill(
    prompt: int, lengths: Sequence[int], order: Sequence[int], micro_batch: int, most: int
) -> list[list[int]]:
    passes: list[list[int]] = [[]]
    for i in order:
        members = [*passes[-1], i]
        rows = packed_rows(prompt, [lengths[j] for j in members])
        # The longest comes first, and every answer of the pass is padded to it.
        block = len(members) * (lengths[members[0]] - 1)
        if passes[-1] and (len(passes[-1]) == most or max(rows, block) > micro_batch):
            passes.append([])
        passes[-1].append(i)
    return passes
