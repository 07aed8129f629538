"""The way of a run through its updates: what is the same whatever it learns from."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import psutil

from trainer.algorithms.evaluation import Evaluator
from trainer.algorithms.metrics import Metrics
from trainer.checkpoint.file import State
from trainer.checkpoint.keeper import Keeper
from trainer.health.findings import Watch
from trainer.model.learner import Learner
from trainer.monitor.protocol import Event, Monitor, UpdateStatus


@dataclass(slots=True, kw_only=True)
class Course(ABC):
    """Updates one after the other, with evaluations, checkpoints and findings between them.

    ``completed`` counts the updates that are behind it, ``trained`` those of them that changed the
    adapter.
    """

    guide: Watch
    keeper: Keeper
    evaluator: Evaluator | None = None
    completed: int = 0
    trained: int = 0
    _whole: bool = True
    _process: psutil.Process = field(default_factory=psutil.Process)

    def __post_init__(self) -> None:
        self._process.cpu_percent()

    @property
    @abstractmethod
    def learner(self) -> Learner: ...

    @property
    @abstractmethod
    def monitor(self) -> Monitor: ...

    @property
    @abstractmethod
    def planned(self) -> int:
        """How many updates the run has when nothing ends it before."""
        ...

    @property
    @abstractmethod
    def verbose(self) -> bool: ...

    @abstractmethod
    def update(self, update: int) -> None:
        """Make one update, report it and let it count. Raises what ends the run."""
        ...

    @abstractmethod
    def own_state(self) -> State:
        """What it carries from update to update beside what every run does."""
        ...

    @abstractmethod
    def load_own_state(self, state: State) -> None:
        """Called last, when all else is as ``state`` has it."""
        ...

    def train(self) -> None:
        """Run the updates that are left, until the end or until the monitor asks to stop.

        An update that fails leaves the adapter as the last completed update made it. Raises
        TrainingError (guard, stall, non-finite numbers), RewardError, and RolloutStopped when the
        monitor asked while answers were being written.
        """
        learner = self.learner
        try:
            self._evaluate_what_is_missing()
            while not self.finished and not self.monitor.should_stop():
                before = learner.adapter.state()
                try:
                    self.update(self.completed + 1)
                except BaseException:
                    if not self._whole:
                        learner.adapter.load_state(before)
                    raise
                self._evaluate()
                self.keeper.update_done(self.completed, learner.steps, self.state)
                self._do_what_is_requested()
        finally:
            # An update that failed among its steps has left moments and critic half changed.
            if self._whole:
                self.keeper.ended(self.completed, learner.steps, self.state)

    @property
    def finished(self) -> bool:
        """Whether all updates are made, or further ones would not be better."""
        enough = self.evaluator is not None and self.evaluator.exhausted
        return enough or self.completed >= self.planned

    def _evaluate_what_is_missing(self) -> None:
        """Before the first update, or where a run stopped between an update and its evaluation."""
        if self.evaluator is not None and self.evaluator.last < self.completed:
            if self.completed == 0:
                self.evaluator.evaluate(0)
            else:
                self._evaluate()

    def _do_what_is_requested(self) -> None:
        """Out of turn, between two updates. An evaluation counts like any other, so it may also
        end the run."""
        wishes, done = self.monitor.requested(), self.completed
        if "evaluate" in wishes:
            if self.evaluator is None:
                words = "an evaluation was asked for, but the configuration has no [evaluation]"
                self._say(Event("warning", "requested", words, done))
            elif self.evaluator.last < done:
                self._evaluate(now=True)
            else:
                words = f"update {done} has just been evaluated, so asking for it adds nothing"
                self._say(Event("info", "requested", words, done))
        if "checkpoint" in wishes:
            if self.keeper.saved < done:
                self.keeper.asked(done, self.learner.steps, self.state)
            else:
                words = f"update {done} has just been saved, so asking for it adds nothing"
                self._say(Event("info", "requested", words, done))

    def _evaluate(self, *, now: bool = False) -> None:
        """After an update that is due, or that is the last one planned; or ``now``."""
        evaluator, update = self.evaluator, self.completed
        if evaluator is None or not (now or evaluator.is_due(update) or self.finished):
            return
        evaluator.evaluate(update)
        if evaluator.improved:
            self.keeper.better(update, self.learner.steps, self.state)
        if evaluator.exhausted:
            best = evaluator.best_update
            when = f"after update {best}" if best else "before the first update"
            words = (
                f"stopped early: {evaluator.without_better} evaluations in a row were not better "
                f"than the {evaluator.best:.3g} {when}"
            )
            self._say(Event("info", "early_stop", words, update))

    def state(self) -> State:
        """All that the next update depends on."""
        return {
            "completed": self.completed,
            "trained": self.trained,
            "adapter": self.learner.adapter.state(),
            "learner": self.learner.state(),
            "evaluator": self.evaluator.state() if self.evaluator else None,
            **self.own_state(),
        }

    def load_state(self, state: State) -> None:
        """Be where the run was that ``state`` was taken of."""
        self.learner.adapter.load_state(state["adapter"])
        self.learner.load_state(state["learner"])
        if self.evaluator is not None:
            self.evaluator.load_state(state["evaluator"])
        self.completed, self.trained = state["completed"], state["trained"]
        self.keeper.saved = self.completed
        self.keeper.store.start_at(self.learner.steps)
        self.load_own_state(state)

    def _tell(self, update: int, status: UpdateStatus, values: Metrics) -> None:
        """Give the monitor an update's numbers, and what they warn of."""
        self.monitor.metrics(update, status, values)
        strange = sorted(name for name, value in values.items() if not math.isfinite(value))
        if strange:
            words = f"not finite, and stored as null: {', '.join(strange)}"
            self._say(Event("warning", "nonfinite_metric", words, update))
        if self.verbose:
            lines = (f"{name} = {values[name]:.6g}" for name in sorted(values))
            self._say(Event("info", "all_metrics", "\n".join(lines), update))
        for finding in self.guide.add(update, values):
            data = {"metric": finding.metric, "value": finding.value, "since": finding.since}
            self._say(Event("warning", "health", finding.message, update, data))

    def _say(self, event: Event) -> None:
        self.monitor.event(event)
