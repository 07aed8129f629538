"""The vocabulary of the metric guide: healthy bands, and the kinds of rule that say what is bad.

All of it is data, so that a chart can draw what the evaluator judges. Limits are numbers, or the
dotted key of the configuration that holds the number. Values are counted, not updates: those
without the metric (skipped ones) are passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Limit = float | str
Trend = Literal["rising", "falling", "slowly rising", "slowly falling", "steady"]


@dataclass(frozen=True, slots=True)
class Band:
    """Where a healthy metric is: between ``low`` and ``high`` (None: no bound), from the
    ``after``-th value on; ``low_of_start`` is a bound as a part of where the run started;
    ``trend`` is where it goes. ``text`` says all of this in words."""

    text: str
    low: float | None = None
    high: Limit | None = None
    low_of_start: float | None = None
    trend: Trend | None = None
    after: int = 0


@dataclass(frozen=True, slots=True)
class Above:
    """The median of the last ``over`` values is above ``times`` the limit. With ``after`` it is
    asked from that value on, over as many as there are by then."""

    limit: Limit
    over: int = 5
    times: float = 1.0
    after: int | None = None


@dataclass(frozen=True, slots=True)
class Below:
    """The median of the last ``over`` values is below the limit, from the ``after``-th value on."""

    limit: Limit
    over: int = 5
    after: int = 0


@dataclass(frozen=True, slots=True)
class Zero:
    """Each of the last ``over`` values is exactly 0."""

    over: int = 20


@dataclass(frozen=True, slots=True)
class Jump:
    """One value is above the limit, and at least ``times`` the median of the ten before it. It
    lasts while values stay above the limit."""

    limit: Limit
    times: float = 2.0


@dataclass(frozen=True, slots=True)
class UnderStart:
    """The median of the last ``over`` values is below ``fraction`` of that of the first five."""

    fraction: float
    over: int = 5


@dataclass(frozen=True, slots=True)
class OverStart:
    """The median of the last ``over`` values is above ``times`` that of the first five, and above
    ``least``."""

    times: float
    least: float
    over: int = 10


@dataclass(frozen=True, slots=True)
class NotRisen:
    """From the ``after``-th value on: the mean of the last ``over`` values is not even half a
    standard error of the difference above the mean of the first ``over``."""

    after: int = 50
    over: int = 20


@dataclass(frozen=True, slots=True)
class Fallen:
    """From the ``after``-th value on: the mean of the last ``over`` values is below the best such
    mean so far by more than four standard errors of the difference, and a third of what that best
    one had gained on the first ``over`` is lost."""

    after: int = 50
    over: int = 20


Test = Above | Below | Zero | Jump | UnderStart | OverStart | NotRisen | Fallen


@dataclass(frozen=True, slots=True)
class Rule:
    """When a metric is bad, what that means, and what to change in a run of each algorithm.

    The test has to hold ``lasting`` values in a row. ``unless_learning`` passes over it while the
    reward rises, or is near what the best answers get: then the same number is a sign of success.
    ``unless_at_best`` passes over it where hardly anything is left to win: the mean reward lies
    below the best answer of the run by at most a third of the answers' standard deviation.
    ``needs_steps`` is for what is so by construction where an update has a single optimizer step.
    ``quiet`` ones are listed at the end, but not announced during the run.
    """

    test: Test
    what: str
    change: Mapping[str, str]
    lasting: int = 1
    unless_learning: bool = False
    unless_at_best: bool = False
    needs_steps: bool = False
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric with its healthy band and its rules, the first that applies counting.

    ``algorithms`` are those that it belongs to; ``when`` are dotted keys of the configuration with
    the value that each must have (None: any but unset).
    """

    name: str
    means: str
    healthy: Band
    rules: tuple[Rule, ...]
    algorithms: tuple[str, ...] = ("grpo", "ppo")
    when: Mapping[str, Any] | None = None
