"""The training loop of the algorithms that learn from rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from trainer.algorithms import metrics
from trainer.algorithms.course import Course
from trainer.algorithms.groups import Group
from trainer.algorithms.method import Method, Tools
from trainer.algorithms.objectives import PassStats
from trainer.algorithms.optimise import learning_rates
from trainer.algorithms.stopwatch import Stopwatch
from trainer.checkpoint.file import State
from trainer.errors import TrainingError
from trainer.export import load_into
from trainer.health.audit import Audit, AuditReport
from trainer.model.learner import Learner
from trainer.monitor.protocol import Event, GroupRecord, Monitor

G = TypeVar("G", bound=Group)


@dataclass(slots=True)
class Loop(Course, Generic[G]):
    """Sampled answers with their rewards, and what ``method`` makes of them."""

    method: Method[G]
    tools: Tools[G]
    audit: Audit

    @property
    def learner(self) -> Learner:
        return self.tools.learner

    @property
    def monitor(self) -> Monitor:
        return self.tools.monitor

    @property
    def planned(self) -> int:
        return self.tools.config.rollout.updates

    @property
    def verbose(self) -> bool:
        return self.tools.config.run.verbose

    def own_state(self) -> State:
        return {"method": self.method.state()}

    def load_own_state(self, state: State) -> None:
        self.method.load_state(state["method"])
        if self.trained:
            # The sampler too.
            with load_into(self.tools.collector.engine, self.learner.adapter):
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
        self._tell(update, "trained" if passes else "skipped", values)
        if audit and audit.news:
            over = {"over": [excess.measure for excess in audit.news]}
            self._say(Event("warning", "audit", audit.message(), update, over))
        return values


def _records(groups: Sequence[Group], audit: AuditReport | None) -> list[GroupRecord]:
    flags = iter(audit.flags if audit else ())
    return [group.record([next(flags, ()) for _ in group.answers]) for group in groups]
