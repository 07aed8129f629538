"""Drawing tokens from logits, so that an answer depends on its seed and hardly on anything else.

A draw is an exponential race: token i arrives after Eᵢ / pᵢ, with independent Eᵢ ~ Exp(1), and the
first to arrive is drawn, which happens with probability pᵢ (the Gumbel-max trick, Maddison, Tarlow
and Minka 2014, with logarithms taken away). Eᵢ is a hash of the answer's seed, the step and i, so
neither the other rows of a batch nor their number can touch it.

Why not one uniform number and the cumulative distribution? There the drawn token changes as soon as
the sum of *all* tokens before it moves across that number, so rounding noise of 1e-6 in each logit
adds up over the vocabulary. In a race the noise has to reverse the order of the first two arrivals,
and only these two tokens' noise counts. Batches of another size round differently, so the same
seed would otherwise give other answers at another concurrency.

Noise for all 49,152 tokens of every row costs a sixth of the decoding itself. A race is closed
under merging: the first arrival among many tokens comes at Exp(1) divided by their total mass, and
which of them it is does not depend on when. So only the *head*, tokens within `HEAD` nats of the
best, race one by one; the tail races as one event, and in the rare row where it wins its tokens
race among themselves with fresh noise. The distribution is exact either way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trainer.errors import TrainingError
from trainer.rollout.seeds import GOLDEN, MIX_1, MIX_2

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float32]
Seeds = npt.NDArray[np.uint64]

HEAD: Final = 9.0
"""Width of the head in nats. At 9, SmolLM2 at temperature 1 has about a thousand tokens in it and
2% of the mass outside: hashing the head and, in 2% of the rows, the tail cost about the same."""

_TOP_P_SLACK = 1e-6
"""A set whose float32 mass is this close below top_p counts as having reached it."""

_TAIL_EVENT = -1
_TAIL_STREAM = np.uint64(0xD1B54A32D192ED03)


@dataclass(frozen=True, slots=True)
class Draws:
    """``tokens`` (rows,) int32 and ``logprobs`` (rows,) float32, in nats at the temperature and
    over the whole vocabulary, whatever top_p leaves out."""

    tokens: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]


def draw(
    logits: Logits, seeds: Seeds, steps: Ints, *, temperature: float, top_p: float = 1.0
) -> Draws:
    """Draw one token from each row of ``logits`` (rows, vocabulary).

    ``seeds`` (rows,) and ``steps`` (rows,) name the noise: the same two numbers over the same
    logits draw the same token in any batch. ``temperature`` divides the logits. With ``top_p``
    below 1 the draw is from the smallest set of most probable tokens whose mass reaches it; of
    equally probable tokens the lower id enters first. At a temperature of 0 the most probable token
    is taken, whatever the noise: it is certain, so its log-probability is 0.

    Raises:
        TrainingError: a row's largest logit is not finite.
        ValueError: ``temperature`` or ``top_p`` is outside its range.
    """
    if not temperature >= 0:
        raise ValueError(f"temperature must be at least 0, not {temperature}")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p must be in (0, 1], not {top_p}")
    keys = _stream(seeds, steps)
    tokens = np.empty(len(logits), np.int32)
    logprobs = np.empty(len(logits), np.float32)
    for row in range(len(logits)):
        best = _finite_maximum(logits[row], row)
        if temperature == 0:
            tokens[row], logprobs[row] = logits[row].argmax(), 0.0
            continue
        weights = _weights(logits[row], best, temperature)
        total, token = (
            _race(weights, keys[row])
            if top_p == 1.0
            else _race_in_nucleus(weights, keys[row], top_p)
        )
        tokens[row] = token
        logprobs[row] = (float(logits[row, token]) - float(best)) / temperature - np.log(total)
    return Draws(tokens, logprobs)


def _finite_maximum(logits: Logits, row: int) -> np.float32:
    best = logits.max()  # NaN if any of them is
    if not np.isfinite(best):
        raise TrainingError(
            f"the sampler's logits of row {row} are not finite (the largest is {best}): the "
            "adapter or the model file is damaged, or the learning rate is far too high"
        )
    return np.float32(best)


def _weights(logits: Logits, best: np.float32, temperature: float) -> Logits:
    """exp((logits − best) / temperature): probabilities up to their sum, the largest being 1."""
    with np.errstate(over="ignore", under="ignore"):  # far below the best means 0
        weights: Logits = logits - best
        if temperature != 1.0:
            weights /= np.float32(temperature)
        return np.exp(weights, out=weights)


def _race(weights: Logits, key: np.uint64) -> tuple[float, int]:
    """The sum of ``weights`` and the winner among them. Zeroes the head of ``weights``."""
    head = np.flatnonzero(weights > np.float32(np.exp(-HEAD)))
    masses = np.empty(len(head) + 1)
    masses[:-1] = weights[head]
    # What is left is summed by itself: as a difference of two sums the tail would drown in the
    # rounding of the head.
    weights[head] = 0.0
    masses[-1] = weights.sum()
    with np.errstate(divide="ignore"):  # an empty tail arrives never
        arrivals = _exponentials(key, np.append(head, _TAIL_EVENT)) / masses
    winner = int(arrivals.argmin())
    if winner == len(head):
        return float(masses.sum()), _first_arrival(weights, key ^ _TAIL_STREAM)
    return float(masses.sum()), int(head[winner])


def _first_arrival(weights: Logits, key: np.uint64) -> int:
    ids = np.flatnonzero(weights)
    return int(ids[(_exponentials(key, ids) / weights[ids]).argmin()])


def _race_in_nucleus(weights: Logits, key: np.uint64, top_p: float) -> tuple[float, int]:
    total = float(weights.sum())
    enough = (top_p - _TOP_P_SLACK) * total
    # Sorting the whole vocabulary takes milliseconds, and the head alone nearly always suffices.
    candidates = np.flatnonzero(weights > np.float32(np.exp(-HEAD)))
    if weights[candidates].sum(dtype=np.float64) < enough:
        candidates = np.flatnonzero(weights)
    order = candidates[np.argsort(-weights[candidates], kind="stable")]
    reached = np.cumsum(weights[order], dtype=np.float64)
    kept = order[: int(np.searchsorted(reached, enough)) + 1]
    arrivals = _exponentials(key, kept) / weights[kept]
    return total, int(kept[arrivals.argmin()])


def _stream(seeds: Seeds, steps: Ints) -> Seeds:
    """One 64-bit key for each (seed, step)."""
    return _mix64(seeds + (steps.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN))


def _exponentials(key: np.uint64, counters: Ints) -> Floats:
    """Exp(1) numbers, each a function of ``key`` and its counter alone (SplitMix64 by index)."""
    bits = _mix64(counters.astype(np.uint64) * np.uint64(GOLDEN) + key) >> np.uint64(11)
    # Half a unit keeps the uniform number away from 0 and 1, where the logarithm ends.
    uniform = (bits.astype(np.float64) + 0.5) * 2.0**-53
    exponentials: Floats = -np.log(uniform)
    return exponentials


def _mix64(state: Seeds) -> Seeds:
    """`trainer.rollout.seeds.mix64` on arrays, where arithmetic wraps by itself."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(MIX_1)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(MIX_2)
    return state ^ (state >> np.uint64(31))
