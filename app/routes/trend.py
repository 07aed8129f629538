"""Where the curve goes that a run is about, and whether that is more than noise."""

from __future__ import annotations

from dataclasses import dataclass

from app.store.queries.overview import Numbers
from trainer.health.headline import Headline
from trainer.health.trackers import error_of_difference, estimate

EARLY = 10
"""Updates before which nothing is told of a trend."""
_ERRORS = 2.0
_LEVEL = 0.05
"""The part of the larger mean up to which two means are level, whatever the noise."""


@dataclass(frozen=True, slots=True)
class Trend:
    """Means of the later and of the earlier half of the last values; ``sure`` where they differ by
    more than their error explains."""

    before: float
    now: float
    over: int
    sure: bool

    @property
    def change(self) -> float:
        return self.now - self.before

    @property
    def is_level(self) -> bool:
        """Whether the means are close to each other. Those of a noisy curve may be far apart
        without it being ``sure`` that they differ."""
        return abs(self.change) <= _LEVEL * max(abs(self.before), abs(self.now))


def trend_of(values: list[tuple[int, float]]) -> Trend | None:
    """Of the later half against the earlier; None with fewer than `EARLY` values."""
    half = len(values) // 2
    return None if len(values) < EARLY else trend_between(values[:half], values[-half:])


def trend_since_the_start(numbers: Numbers) -> Trend | None:
    """Of the last values against as many of the first; None with fewer than `EARLY` values."""
    count = min(len(numbers.start), len(numbers.main) // 2)
    if count < EARLY // 2:
        return None
    return trend_between(numbers.start[:count], numbers.main[-count:])


def trend_between(before: list[tuple[int, float]], now: list[tuple[int, float]]) -> Trend:
    """Of some values against others, each with its update."""
    then, today = (estimate([value for _, value in values]) for values in (before, now))
    error = error_of_difference(then, today)
    sure = abs(today.mean - then.mean) > _ERRORS * error
    return Trend(then.mean, today.mean, len(now), sure)


def has_learnt(numbers: Numbers, main: Headline) -> bool:
    """Whether the curve is surely better than at the start, or gets better now."""
    trends = (trend_of(numbers.main), trend_since_the_start(numbers))
    return any(t is not None and t.sure and main.is_better(t.now, t.before) for t in trends)
