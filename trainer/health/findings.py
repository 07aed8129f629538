"""Turns a run's metrics into findings: what is wrong, since when, and what to change.

``findings`` is a pure function of the rows; ``Watch`` takes them one by one and is what it is made
of, so a dashboard and a running loop say the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from trainer.health.resolve import guide_for, steps_per_update
from trainer.health.rules import Metric, Rule
from trainer.health.trackers import RewardTrend, Tracker, Verdict, tracker

Values = Mapping[str, float | None]

# Updates that a metric has to be fine before it is announced again.
QUIET_UPDATES = 50


@dataclass(frozen=True, slots=True)
class Finding:
    """A metric that is bad: its number over the last updates, ``bound`` (what that is held
    against), since which update without a break, what it means and what to change."""

    metric: str
    state: Literal["watch"]
    value: float
    bound: str
    since: int
    what: str
    change: str

    @property
    def message(self) -> str:
        """All of it in one line."""
        return (
            f"{self.metric} is {self.value:.3g}, {self.bound}, since update {self.since}. "
            f"{self.what} {self.change}"
        )

    def __str__(self) -> str:
        return self.message


def findings(
    rows: Sequence[tuple[int, Values]], algorithm: str, params: Mapping[str, Any]
) -> list[Finding]:
    """What is wrong after the last of ``rows`` (update, metrics; in order), most important first.

    ``params`` is the resolved configuration as nested JSON types. A metric that is missing or not
    finite in a row leaves what was known of it.
    """
    watch = Watch(algorithm, params)
    for update, values in rows:
        watch.add(update, values)
    return watch.findings()


class Watch:
    """Follows a run. Its cost for an update does not depend on how many there were."""

    def __init__(self, algorithm: str, params: Mapping[str, Any]) -> None:
        several_steps = steps_per_update(algorithm, params) > 1
        self._algorithm = algorithm
        self._trend = RewardTrend()
        self._metrics = [
            (metric, [_Judged(r) for r in metric.rules if several_steps or not r.needs_steps])
            for metric in guide_for(algorithm, params)
        ]
        self._added = 0
        self._last_bad: dict[str, int] = {}

    def add(self, update: int, values: Values) -> list[Finding]:
        """Take in an update's metrics. Returns what has turned bad with it; a metric that was
        told comes again only after it was fine for 50 updates."""
        self._added += 1
        self._trend.add(*(_finite(values, f"reward/{of}") for of in ("mean", "max", "std")))
        learning, at_best = self._trend.is_learning(), self._trend.is_at_best()
        for metric, rules in self._metrics:
            value = _finite(values, metric.name)
            if value is not None:
                for judged in rules:
                    judged.add(update, value, learning, at_best)
        return self._news()

    def findings(self) -> list[Finding]:
        """What is bad now, most important first."""
        return [finding for finding, _ in self._current()]

    def _current(self) -> list[tuple[Finding, Rule]]:
        return [
            (self._finding(metric, judged.rule, judged.verdict), judged.rule)
            for metric, rules in self._metrics
            for judged in rules
            if judged.verdict is not None and judged is _first_bad(rules)
        ]

    def _news(self) -> list[Finding]:
        news: list[Finding] = []
        for finding, rule in self._current():
            last = self._last_bad.get(finding.metric)
            self._last_bad[finding.metric] = self._added
            if not rule.quiet and (last is None or self._added - last > QUIET_UPDATES):
                news.append(finding)
        return news

    def _finding(self, metric: Metric, rule: Rule, verdict: Verdict) -> Finding:
        return Finding(
            metric=metric.name,
            state="watch",
            value=verdict.value,
            bound=verdict.bound,
            since=verdict.since,
            what=rule.what,
            change=rule.change[self._algorithm],
        )


@dataclass(slots=True)
class _Judged:
    """A rule with what it has come to: its verdict, once it has lasted."""

    rule: Rule
    verdict: Verdict | None = None
    _tracker: Tracker = field(init=False)
    _lasted: int = 0

    def __post_init__(self) -> None:
        self._tracker = tracker(self.rule.test)

    def add(self, update: int, value: float, learning: bool, at_best: bool) -> None:
        verdict = self._tracker.add(update, value)
        excused = (self.rule.unless_learning and learning) or (self.rule.unless_at_best and at_best)
        self._lasted = self._lasted + 1 if verdict and not excused else 0
        self.verdict = verdict if self._lasted >= self.rule.lasting else None


def _first_bad(rules: Sequence[_Judged]) -> _Judged | None:
    return next((judged for judged in rules if judged.verdict is not None), None)


def _finite(values: Values, name: str) -> float | None:
    value = values.get(name)
    return value if value is not None and math.isfinite(value) else None
