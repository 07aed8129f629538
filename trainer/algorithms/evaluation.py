"""Measuring the policy on what it is not trained on, and judging whether it got better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from trainer.algorithms.metrics import Metrics
from trainer.checkpoint.file import State
from trainer.config.common import EvaluationSection
from trainer.monitor.protocol import GroupRecord, Monitor


@dataclass(frozen=True, slots=True)
class Measured:
    """``figure`` is what evaluations are compared by; ``records`` are the answers behind it, none
    where nothing is sampled."""

    figure: float
    records: Sequence[GroupRecord]
    values: Metrics


class Measure(Protocol):
    """What an evaluation looks at."""

    @property
    def lower_is_better(self) -> bool: ...

    def measure(self) -> Measured:
        """Of the policy as it is now, the same questions every time. Raises RolloutStopped when
        the run is asked to stop meanwhile."""
        ...


@dataclass(slots=True)
class Evaluator:
    """Measures when it is due, and remembers the best result.

    An iteration of `[evaluation] every_iterations` is ``updates_each`` updates: one where answers
    are sampled, an epoch in SFT.
    """

    section: EvaluationSection
    subject: Measure
    monitor: Monitor
    updates_each: int = 1
    last: int = -1
    best: float | None = None
    best_update: int = 0
    without_better: int = 0

    def is_due(self, update: int) -> bool:
        return update % (self.section.every_iterations * self.updates_each) == 0

    def evaluate(self, update: int) -> None:
        """Measure the policy after ``update`` (0: before the first). Raises RolloutStopped, and
        RewardError where rewards are measured."""
        result = self.subject.measure()
        self._judge(update, result.figure)
        self.monitor.evaluation(update, result.records, result.values)

    @property
    def improved(self) -> bool:
        """Whether the last evaluation is the best one so far."""
        return self.best_update == self.last

    @property
    def exhausted(self) -> bool:
        """Whether ``patience`` evaluations in a row brought nothing better."""
        patience = self.section.patience
        return patience is not None and self.without_better >= patience

    def _judge(self, update: int, figure: float) -> None:
        self.last = update
        if self.best is None or self._gain(figure, self.best) > self.section.min_delta:
            self.best, self.best_update, self.without_better = figure, update, 0
        else:
            self.without_better += 1

    def _gain(self, figure: float, before: float) -> float:
        return before - figure if self.subject.lower_is_better else figure - before

    def state(self) -> State:
        return {
            "last": self.last,
            "best": self.best,
            "best_update": self.best_update,
            "without_better": self.without_better,
        }

    def load_state(self, state: State) -> None:
        self.last, self.best = state["last"], state["best"]
        self.best_update, self.without_better = state["best_update"], state["without_better"]
