"""Rules at work: each kind takes in one value after the other and says whether it holds by now.

A tracker keeps a bounded window and what it needs of the run's start, so an update costs the same
however long the run is.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, Protocol

from trainer.health.rules import (
    Above,
    Below,
    Fallen,
    Jump,
    Limit,
    NotRisen,
    OverStart,
    Test,
    UnderStart,
    Zero,
)

START = 5  # values whose median is what a metric started from
BEFORE_JUMP = 10
_LEAST_BEFORE_JUMP = 3
_FALL_ERRORS = 4.0
_FALL_SHARE = 1 / 3
_RISE_ERRORS = 0.5


@dataclass(frozen=True, slots=True)
class Verdict:
    """A rule holds: for ``value``, since ``since``; ``bound`` says in words what it is held
    against."""

    value: float
    since: int
    bound: str


class Tracker(Protocol):
    """Follows one metric under one rule."""

    def add(self, update: int, value: float) -> Verdict | None:
        """Take in the value of ``update``; the verdict if the rule holds now."""


class Estimate(NamedTuple):
    """The mean of some values and the variance of that mean (the square of its error)."""

    mean: float
    variance: float


def estimate(values: list[float]) -> Estimate:
    """Of at least two values."""
    count = len(values)
    mean = sum(values) / count
    variance = sum((value - mean) ** 2 for value in values) / (count - 1)
    return Estimate(mean, variance / count)


def error_of_difference(one: Estimate, other: Estimate) -> float:
    """Standard error of the difference of two independent means."""
    return math.sqrt(one.variance + other.variance)


class MedianTracker:
    """``Above``, ``Below``, ``UnderStart`` and ``OverStart``: a median on the wrong side."""

    def __init__(self, test: Above | Below | UnderStart | OverStart) -> None:
        self._test = test
        self._recent: deque[tuple[int, float]] = deque(maxlen=test.over)
        self._first: list[float] = []
        self._seen = 0
        self._since: int | None = None

    def add(self, update: int, value: float) -> Verdict | None:
        self._recent.append((update, value))
        self._seen += 1
        if len(self._first) < START:
            self._first.append(value)
        middle = median(v for _, v in self._recent)
        if self._seen < self._needed() or not self._is_beyond(middle):
            self._since = None
            return None
        if self._since is None:
            self._since = next(u for u, v in self._recent if self._is_beyond(v))
        return Verdict(middle, self._since, self._bound())

    def _needed(self) -> int:
        match self._test:
            case Below(after=after, over=over):
                return max(after, over)
            case Above(over=over, after=after):
                return over if after is None else after
        return START + self._test.over

    def _limit(self) -> float:
        match self._test:
            case Above(limit=limit, times=times):
                return times * number(limit)
            case Below(limit=limit):
                return number(limit)
            case UnderStart(fraction=fraction):
                return fraction * median(self._first)
        return max(self._test.times * median(self._first), self._test.least)

    def _is_beyond(self, value: float) -> bool:
        if isinstance(self._test, Below | UnderStart):
            return value < self._limit()
        return value > self._limit()

    def _bound(self) -> str:
        match self._test:
            case Above():
                return f"above {self._limit():.3g}"
            case Below():
                return f"below {self._limit():.3g}"
            case UnderStart(fraction=fraction):
                return f"under {fraction:.0%} of the {median(self._first):.3g} it started from"
        return f"more than {self._test.times:g} times the {median(self._first):.3g} it started from"


class ZeroTracker:
    """``Zero``: nothing but zeros."""

    def __init__(self, test: Zero) -> None:
        self._over = test.over
        self._zeros = 0
        self._since = 0

    def add(self, update: int, value: float) -> Verdict | None:
        if value != 0:
            self._zeros = 0
            return None
        if not self._zeros:
            self._since = update
        self._zeros += 1
        if self._zeros < self._over:
            return None
        return Verdict(value, self._since, f"{self._zeros} times in a row")


class JumpTracker:
    """``Jump``: far above what was usual, from one update to the next."""

    def __init__(self, test: Jump) -> None:
        self._limit, self._times = number(test.limit), test.times
        self._before: deque[float] = deque(maxlen=BEFORE_JUMP)
        self._since: int | None = None
        self._usual = 0.0

    def add(self, update: int, value: float) -> Verdict | None:
        if value <= self._limit:
            self._since = None
        elif self._since is None and len(self._before) >= _LEAST_BEFORE_JUMP:
            usual = median(self._before)
            if value >= self._times * usual:
                self._since, self._usual = update, usual
        self._before.append(value)
        if self._since is None:
            return None
        return Verdict(value, self._since, f"after about {self._usual:.3g} before")


class _MeansTracker:
    """What the two rules about means share: the first values, the last, and how many there were."""

    def __init__(self, test: NotRisen | Fallen) -> None:
        self._test = test
        self._last: deque[tuple[int, float]] = deque(maxlen=test.over)
        self._first_update = 0
        self._first: Estimate | None = None
        self._seen = 0

    def _take(self, update: int, value: float) -> Estimate | None:
        """The last values' mean, once there are enough."""
        if not self._seen:
            self._first_update = update
        self._last.append((update, value))
        self._seen += 1
        if self._seen < self._test.over:
            return None
        now = estimate([v for _, v in self._last])
        if self._first is None:
            self._first = now
        return now


class NotRisenTracker(_MeansTracker):
    """``NotRisen``: the last values are no better than the first."""

    def add(self, update: int, value: float) -> Verdict | None:
        now = self._take(update, value)
        if now is None or self._first is None or self._seen < self._test.after:
            return None
        if now.mean - self._first.mean > _RISE_ERRORS * error_of_difference(now, self._first):
            return None
        bound = f"not above the {self._first.mean:.3g} of the first {self._test.over} updates"
        return Verdict(now.mean, self._first_update, bound)


class FallenTracker(_MeansTracker):
    """``Fallen``: the last values are much worse than the best ones were."""

    def __init__(self, test: Fallen) -> None:
        super().__init__(test)
        self._best: tuple[Estimate, int] | None = None

    def add(self, update: int, value: float) -> Verdict | None:
        now = self._take(update, value)
        if now is None or self._first is None:
            return None
        if self._best is None or now.mean > self._best[0].mean:
            self._best = now, update
        best, when = self._best
        lost, gained = best.mean - now.mean, best.mean - self._first.mean
        certain = lost > _FALL_ERRORS * error_of_difference(now, best)
        if self._seen < self._test.after or not certain or lost < _FALL_SHARE * gained:
            return None
        return Verdict(now.mean, when, f"down from {best.mean:.3g}")


def tracker(test: Test) -> Tracker:
    """The tracker for a rule whose limits are numbers."""
    match test:
        case Zero():
            return ZeroTracker(test)
        case Jump():
            return JumpTracker(test)
        case NotRisen():
            return NotRisenTracker(test)
        case Fallen():
            return FallenTracker(test)
    return MedianTracker(test)


def number(limit: Limit) -> float:
    """``limit``, which ``guide_for`` has looked up."""
    if isinstance(limit, str):
        raise TypeError(f"the limit {limit} has not been looked up")
    return limit


class RewardTrend:
    """Where the reward goes. The policy is learning where its reward rises or has got most of what
    there is, and at its best where hardly anything is left to win."""

    _SPAN = 60  # values whose later half is compared with the earlier
    _LEAST = 10
    _NOW = 20
    _MOST = 0.7  # of the way from the start to the best answer seen
    _LEFT = 1 / 3  # standard deviations; where rewards are 0 or 1, a mean of 0.9
    _ROUNDING = 1e-6

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=self._SPAN)
        self._spreads: deque[float] = deque(maxlen=self._NOW)
        self._first: list[float] = []
        self._best = -math.inf
        self._least = math.inf

    def add(self, mean: float | None, best: float | None, spread: float | None) -> None:
        """An update's ``reward/mean``, ``reward/max`` and ``reward/std``."""
        if best is not None:
            self._best = max(self._best, best)
        if mean is not None:
            self._least = min(self._least, mean)
            self._recent.append(mean)
            self._spreads.append(spread or 0.0)
            if len(self._first) < self._LEAST:
                self._first.append(mean)

    def is_learning(self) -> bool:
        if len(self._recent) < self._LEAST:
            return False
        return self._is_rising() or self._has_learnt()

    def is_at_best(self) -> bool:
        """Whether the mean of the last answers is close to the best one seen, beside how far they
        differ. Where all answers of the run scored alike, no one knows what the best would be."""
        if len(self._recent) < self._LEAST:
            return False
        latest = self._latest()
        now = sum(latest) / len(latest)
        # The variance of all their answers: the mean one inside an update, and that of the means.
        inside = sum(spread**2 for spread in self._spreads) / len(latest)
        between = sum((mean - now) ** 2 for mean in latest) / len(latest)
        rounding = self._ROUNDING * abs(self._best)
        left = self._best - now <= self._LEFT * math.sqrt(inside + between) + rounding
        return left and self._best - self._least > rounding

    def _latest(self) -> list[float]:
        return list(self._recent)[-self._NOW :]

    def _is_rising(self) -> bool:
        values = list(self._recent)
        half = len(values) // 2
        before, now = estimate(values[:half]), estimate(values[-half:])
        return now.mean - before.mean > _RISE_ERRORS * error_of_difference(before, now)

    def _has_learnt(self) -> bool:
        start = sum(self._first) / len(self._first)
        latest = self._latest()
        now = sum(latest) / len(latest)
        return self._best > start and now >= start + self._MOST * (self._best - start)
