"""Whether one policy does better than another on the same questions: statistics of paired numbers.

The unit is a question. Two policies answer the same ones, so what is looked at is the difference
within each question: how hard a question is falls out of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import stdev

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Change:
    """Means over ``count`` questions before and after, and what can be said of their difference.

    ``low`` and ``high`` bound the mean difference with confidence 0.95, and ``standard_error`` is
    the difference's; all three are None where no spread can be estimated: for a single question,
    and where all differences are equal. ``better``, ``worse`` and ``equal``
    count questions; ``sign_p`` is the two-sided p-value of the exact sign test on the unequal ones.
    Of a number that is neither good nor bad, ``better``, ``worse`` and ``sign_p`` are None.
    """

    count: int
    before: float
    after: float
    difference: float
    standard_error: float | None
    low: float | None
    high: float | None
    better: int | None
    worse: int | None
    equal: int
    sign_p: float | None

    @property
    def is_shown(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def paired(
    before: Sequence[float], after: Sequence[float], *, lower_is_better: bool | None = False
) -> Change:
    """Compare two policies by one number for each question, of both in the same order;
    ``lower_is_better`` is None for a number that is neither good nor bad.

    The interval is Student's for the mean of the n differences d: d̄ ± t · s / √n, with s their
    standard deviation (divisor n − 1) and t the quantile for n − 1 degrees of freedom. Raises
    ValueError for no question or unequal numbers.
    """
    if not before:
        raise ValueError("no question to compare the policies by")
    differences = [b - a for a, b in zip(before, after, strict=True)]
    count, mean = len(differences), mean_of(differences)
    error = low = high = None
    if len(set(differences)) > 1:
        error = stdev(differences) / math.sqrt(count)
        reach = t_quantile(CONFIDENCE, count - 1) * error
        low, high = mean - reach, mean + reach
    up, down = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    return Change(
        count=count,
        before=mean_of(before),
        after=mean_of(after),
        difference=mean,
        standard_error=error,
        low=low,
        high=high,
        better=None if lower_is_better is None else down if lower_is_better else up,
        worse=None if lower_is_better is None else up if lower_is_better else down,
        equal=count - up - down,
        sign_p=None if lower_is_better is None else sign_test(up, down),
    )


def mean_of(values: Sequence[float]) -> float:
    """The mean, whose last digit does not depend on the order of ``values``."""
    return math.fsum(values) / len(values)


def sign_test(up: int, down: int) -> float:
    """The probability that of ``up + down`` fair coins at least as many fall alike as here, on
    either side: the exact two-sided sign test. 1 where there are none."""
    coins = up + down
    tail = math.fsum(math.exp(_log_choices(coins, k)) for k in range(min(up, down) + 1))
    return min(1.0, 2 * tail)


def _log_choices(coins: int, heads: int) -> float:
    """The logarithm of the probability of so many heads; whole numbers would have a digit for each
    few coins."""
    ways = math.lgamma(coins + 1) - math.lgamma(heads + 1) - math.lgamma(coins - heads + 1)
    return ways - coins * math.log(2)


@cache
def t_quantile(confidence: float, freedom: int) -> float:
    """The t with P(|T| ≤ t) = ``confidence``, T of Student's distribution with ``freedom`` ≥ 1
    degrees of freedom, to about twelve digits; found by bisection of `t_within`'s angle."""
    low, high = 0.0, math.pi / 2
    for _ in range(80):
        middle = (low + high) / 2
        if t_within(middle, freedom) < confidence:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan(low)


def t_within(angle: float, freedom: int) -> float:
    """P(|T| ≤ √ν · tan(angle)) for ν = ``freedom`` degrees of freedom and an angle in [0, π/2): the
    finite series 26.7.3 (odd ν) and 26.7.4 (even ν) of Abramowitz and Stegun."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    if freedom == 1:
        return 2 * angle / math.pi
    term = cosine if odd else 1.0
    total = term
    for k in range(2 + odd, freedom - 1, 2):
        term *= (k - 1) / k * cosine * cosine
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
