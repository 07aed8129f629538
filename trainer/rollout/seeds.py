"""Seeds of answers: a pure function of where the answer stands in the run."""

from __future__ import annotations

_MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB


def mix64(value: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014): a bijection of 64-bit integers."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * MIX_1) & _MASK
    value = ((value ^ (value >> 27)) * MIX_2) & _MASK
    return value ^ (value >> 31)


def answer_seed(run_seed: int, update: int, prompt_slot: int, member: int) -> int:
    """The seed of one answer, in [0, 2⁶⁴).

    The four numbers are absorbed one after the other: h ← mix64(h + (x + 1)·GOLDEN). Each step is a
    bijection of x, so answers that differ in the last number only never share a seed; others do
    with the probability of two random 64-bit numbers. Nothing else goes in, so the number of
    answers generated at once, or a run that is stopped and resumed, changes no seed.
    """
    state = 0
    for part in (run_seed, update, prompt_slot, member):
        state = mix64(state + (part + 1) * GOLDEN)
    return state
