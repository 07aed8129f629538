"""Numbers out of comparisons and chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

BRADLEY_TERRY_PRECISION = 0.1
"""The inverse variance of the prior on a strength: weak enough that an answer that wins every one
of seven comparisons comes near to 1, strong enough that it stays below."""

UNKNOWN = 0.5
"""The score of an answer that was never compared: no better and no worse than the average."""

_NEWTON_STEPS = 100
_NEWTON_TOLERANCE = 1e-10


class Comparison(NamedTuple):
    """Two answers by their places, and the share of the win, from 0 to 1, that went to ``one``."""

    one: int
    other: int
    points: float


def win_rates(comparisons: Sequence[Comparison], count: int) -> list[float]:
    """The share of its comparisons that each of ``count`` answers won, in [0, 1]; ``UNKNOWN`` for
    an answer that was not compared. Score of a round-robin tournament (Copeland 1951), divided by
    the comparisons."""
    won, compared = [0.0] * count, [0] * count
    for one, other, points in comparisons:
        won[one] += points
        won[other] += 1 - points
        compared[one] += 1
        compared[other] += 1
    return [w / n if n else UNKNOWN for w, n in zip(won, compared, strict=True)]


def bradley_terry(comparisons: Sequence[Comparison], count: int) -> list[float]:
    """How probably each of ``count`` answers beats an average one, in (0, 1).

    Under Bradley and Terry (1952) answer i beats answer j with probability σ(θ_i − θ_j). The
    strengths θ maximise Σ [p log σ(θ_i − θ_j) + (1 − p) log σ(θ_j − θ_i)] − λ/2 Σ θ², where p is
    the share of the win that went to i and λ is ``BRADLEY_TERRY_PRECISION``: a Gaussian prior that
    keeps strengths finite where an answer won or lost everything, and defines them where the
    comparisons do not connect all answers. At the maximum Σ θ = 0, so σ(θ_i) compares with an
    average answer; it is ``UNKNOWN`` for one that was not compared. Newton's method, since the
    objective is strictly concave.
    """
    strengths = np.zeros(count)
    one = np.array([c.one for c in comparisons], dtype=np.intp)
    other = np.array([c.other for c in comparisons], dtype=np.intp)
    points = np.array([c.points for c in comparisons])
    for _ in range(_NEWTON_STEPS):
        expected = _sigmoid(strengths[one] - strengths[other])
        gradient = -BRADLEY_TERRY_PRECISION * strengths
        np.add.at(gradient, one, points - expected)
        np.add.at(gradient, other, expected - points)
        curvature = BRADLEY_TERRY_PRECISION * np.eye(count)
        certainty = expected * (1 - expected)
        for rows, columns, sign in ((one, one, 1), (other, other, 1), (one, other, -1)):
            np.add.at(curvature, (rows, columns), sign * certainty)
        np.add.at(curvature, (other, one), -certainty)
        step = np.linalg.solve(curvature, gradient)
        # Far from the maximum the quadratic is a poor guide, and a full step can overshoot.
        step *= min(1.0, 1.0 / max(float(np.abs(step).max()), 1e-300))
        strengths += step
        if float(np.abs(step).max()) < _NEWTON_TOLERANCE:
            break
    return [float(score) for score in _sigmoid(strengths)]


def _sigmoid(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    result: npt.NDArray[np.float64] = 1 / (1 + np.exp(-x))
    return result


def rescale(score: float, anchor: float, target: float) -> float:
    """``score`` moved from a scale on which the anchor answer has ``anchor`` to one on which it has
    ``target``; all three are in [0, 1].

    Straight from 0 to the anchor, and from there to 1: order is kept, the ends stay where they are,
    and nothing leaves [0, 1], as it would if all scores were shifted alike.
    """
    if score < anchor:
        return score * target / anchor
    if score > anchor:
        return 1 - (1 - score) * (1 - target) / (1 - anchor)
    return target


def kendall_tau(expected: Sequence[float], found: Sequence[float]) -> float | None:
    """How far two rankings of the same things agree, from −1 to 1: τ_b of Kendall (1945), which
    allows for ties. None where one of the two has nothing but ties."""
    concordance = untied_expected = untied_found = 0
    for i in range(len(expected)):
        for j in range(i):
            left = _sign(expected[i] - expected[j])
            right = _sign(found[i] - found[j])
            concordance += left * right
            untied_expected += left != 0
            untied_found += right != 0
    if not untied_expected or not untied_found:
        return None
    return concordance / float(np.sqrt(untied_expected * untied_found))


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
