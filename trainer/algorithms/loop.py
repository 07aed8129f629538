"""The training loop, the same for every algorithm that learns from rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import psutil

from trainer.algorithms import metrics
from trainer.algorithms.evaluation import Evaluator
from trainer.algorithms.groups import Group
from trainer.algorithms.method import Method, Tools
from trainer.algorithms.objectives import PassStats
from trainer.algorithms.optimise import learning_rates
from trainer.algorithms.stopwatch import Stopwatch
from trainer.checkpoint.file import State
from trainer.checkpoint.keeper import Keeper
from trainer.errors import TrainingError
from trainer.export import load_into
from trainer.health.audit import Audit, AuditReport
from trainer.health.findings import Watch
from trainer.monitor.protocol import Event, GroupRecord

G = TypeVar("G", bound=Group)


@dataclass(slots=True)
class Loop(Generic[G]):
    """``completed`` counts the updates that are behind it, ``trained`` those of them that changed
    the adapter."""

    method: Method[G]
    tools: Tools[G]
    audit: Audit
    guide: Watch
    keeper: Keeper
    evaluator: Evaluator | None = None
    completed: int = 0
    trained: int = 0
    _whole: bool = True
    _process: psutil.Process = field(default_factory=psutil.Process)

    def __post_init__(self) -> None:
        self._process.cpu_percent()

    def train(self) -> None:
        """Run the updates that are left, until the end or until the monitor asks to stop.

        An update that fails leaves the adapter as the last completed update made it. Raises
        TrainingError (guard, stall, non-finite numbers), RewardError, and RolloutStopped when the
        monitor asked while answers were being written.
        """
        learner = self.tools.learner
        try:
            self._evaluate_what_is_missing()
            while not self.finished and not self.tools.monitor.should_stop():
                before = learner.adapter.state()
                try:
                    self.update(self.completed + 1)
                except BaseException:
                    if not self._whole:
                        learner.adapter.load_state(before)
                    raise
                self._evaluate()
                self.keeper.update_done(self.completed, learner.steps, self.state)
        finally:
            # An update that failed among its steps has left moments and critic half changed.
            if self._whole:
                self.keeper.ended(self.completed, learner.steps, self.state)

    @property
    def finished(self) -> bool:
        """Whether all updates are made, or further ones would not be better."""
        enough = self.evaluator is not None and self.evaluator.exhausted
        return enough or self.completed >= self.tools.config.rollout.updates

    def _evaluate_what_is_missing(self) -> None:
        """Before the first update, or where a run stopped between an update and its evaluation."""
        if self.evaluator is not None and self.evaluator.last < self.completed:
            if self.completed == 0:
                self.evaluator.evaluate(0)
            else:
                self._evaluate()

    def _evaluate(self) -> None:
        """After an update that is due, or that is the last one planned."""
        evaluator, update = self.evaluator, self.completed
        if evaluator is None or not (evaluator.is_due(update) or self.finished):
            return
        evaluator.evaluate(update)
        if evaluator.improved:
            self.keeper.better(update, self.tools.learner.steps, self.state)
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
            "adapter": self.tools.learner.adapter.state(),
            "learner": self.tools.learner.state(),
            "method": self.method.state(),
            "evaluator": self.evaluator.state() if self.evaluator else None,
        }

    def load_state(self, state: State) -> None:
        """Be where the run was that ``state`` was taken of, the sampler included."""
        self.tools.learner.adapter.load_state(state["adapter"])
        self.tools.learner.load_state(state["learner"])
        self.method.load_state(state["method"])
        if self.evaluator is not None:
            self.evaluator.load_state(state["evaluator"])
        self.completed, self.trained = state["completed"], state["trained"]
        self.keeper.saved = self.completed
        self.keeper.store.start_at(self.tools.learner.steps)
        if self.trained:
            with load_into(self.tools.collector.engine, self.tools.learner.adapter):
                pass

    def update(self, update: int) -> None:
        """Sample, score, take advantages, make the passes, report, hand the adapter over."""
        watch = Stopwatch()
        groups = self.method.collect(update, watch)
        audit = self.audit.look(update, [a.text for g in groups for a in g.answers])
        # Before the passes: should one of them fail, these answers are what explains it.
        self.tools.monitor.trajectories(update, _records(groups, audit))
        self._whole = False
        passes = self.method.optimise(update, groups, watch)
        if passes:
            with watch("swap"), load_into(self.tools.collector.engine, self.tools.learner.adapter):
                pass
        values = self.report(update, groups, passes, watch, audit)
        self._conclude(update, values, bool(passes))

    def _conclude(self, update: int, values: metrics.Metrics, trained: bool) -> None:
        """Let the update count. Raises the TrainingError with which the method ends the run."""
        end = None
        try:
            self.method.conclude(update, values, trained)
        except TrainingError as error:
            end = error  # of the run, not of the update, which is whole
        self.completed = update
        self.trained += trained
        self._whole = True
        if end is not None:
            raise end

    def report(
        self,
        update: int,
        groups: Sequence[G],
        passes: Sequence[PassStats],
        watch: Stopwatch,
        audit: AuditReport | None,
    ) -> metrics.Metrics:
        """Tell the monitor the update's numbers, and what they warn of."""
        config, learner = self.tools.config, self.tools.learner
        tokens = sum(p.tokens for p in passes)
        values = (
            metrics.reward_metrics(groups)
            | metrics.completion_metrics(groups)
            | metrics.batch_metrics(groups)
            | metrics.sampler_metrics(groups, config.training)
            | metrics.reference_metrics(groups)
            | metrics.throughput_metrics(groups, watch.seconds, tokens)
            | metrics.system_metrics(self._process)
            | self.method.metrics(groups)
            | (dict(audit.values) if audit else {})
            | watch.metrics()
        )
        if passes:
            rates = learning_rates(config.rollout, config.training, update, len(passes) - 1)
            values |= metrics.packing_metrics(learner.counts)
            values |= metrics.policy_metrics(
                passes,
                self.method.kl_coefficient,
                rates[len(passes[-1].norms) - 1],
                learner.steps,
            )
        self.tools.monitor.metrics(update, "trained" if passes else "skipped", values)
        self._comment(update, values)
        self._warn(update, values, audit)
        return values

    def _comment(self, update: int, values: metrics.Metrics) -> None:
        strange = sorted(name for name, value in values.items() if not math.isfinite(value))
        if strange:
            words = f"not finite, and stored as null: {', '.join(strange)}"
            self._say(Event("warning", "nonfinite_metric", words, update))
        if self.tools.config.run.verbose:
            lines = (f"{name} = {values[name]:.6g}" for name in sorted(values))
            self._say(Event("info", "all_metrics", "\n".join(lines), update))

    def _warn(self, update: int, values: metrics.Metrics, audit: AuditReport | None) -> None:
        if audit and audit.news:
            over = {"over": [excess.measure for excess in audit.news]}
            self._say(Event("warning", "audit", audit.message(), update, over))
        for finding in self.guide.add(update, values):
            data = {"metric": finding.metric, "value": finding.value, "since": finding.since}
            self._say(Event("warning", "health", finding.message, update, data))

    def _say(self, event: Event) -> None:
        self.tools.monitor.event(event)


def _records(groups: Sequence[Group], audit: AuditReport | None) -> list[GroupRecord]:
    flags = iter(audit.flags if audit else ())
    return [group.record([next(flags, ()) for _ in group.answers]) for group in groups]
