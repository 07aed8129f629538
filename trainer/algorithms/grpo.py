"""Group relative policy optimisation: the loop.

GRPO (Shao et al., DeepSeekMath, arXiv 2402.03300) as corrected by Dr. GRPO (Liu et al., arXiv
2503.20783) and refined by DAPO (Yu et al., arXiv 2503.14476). Where this loop differs from a
reader's expectation:

1. One optimizer step for each group, not one for the batch; groups are shuffled in each pass.
2. Groups without signal take no part in any step, the KL penalty's included.
3. ``old`` is the trainer's own log-probability of the sampled ids, so a ratio is exactly 1 before
   the first step; what the sampler computed differently is corrected by a truncated weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import psutil

from trainer.algorithms import metrics
from trainer.algorithms.collect import Collector
from trainer.algorithms.groups import Group
from trainer.algorithms.optimise import GrpoObjective, PassStats, run_pass, score_groups, shuffled
from trainer.algorithms.schedules import KlSchedule, learning_rate_factor
from trainer.algorithms.stopwatch import Stopwatch
from trainer.config.models import GrpoConfig
from trainer.errors import TrainingError
from trainer.export import load_into
from trainer.model.learner import Learner
from trainer.monitor.protocol import Event, Monitor, Stage


@dataclass(slots=True)
class Grpo:
    """Everything that a run holds open. ``completed`` counts the updates that are behind it,
    ``trained`` those of them that changed the adapter."""

    config: GrpoConfig
    collector: Collector
    learner: Learner
    monitor: Monitor
    completed: int = 0
    trained: int = 0
    stalled: int = 0
    kl_coefficient: float = field(init=False)
    _process: psutil.Process = field(default_factory=psutil.Process)

    def __post_init__(self) -> None:
        schedule = self._kl_schedule()
        self.kl_coefficient = schedule.first() if schedule else self.config.grpo.kl_coefficient
        self._process.cpu_percent()

    def train(self) -> None:
        """Run the updates that are left, until the end or until the monitor asks to stop.

        An update that fails leaves the adapter as the last completed update made it. Raises
        TrainingError (guard, stall, non-finite numbers), RewardError, and RolloutStopped when the
        monitor asked while answers were being written.
        """
        while self.completed < self.config.grpo.updates and not self.monitor.should_stop():
            before = self.learner.adapter.state()
            try:
                self.update(self.completed + 1)
            except BaseException:
                self.learner.adapter.load_state(before)
                raise

    def update(self, update: int) -> None:
        """Sample, score, take advantages, make the passes, report, hand the adapter over."""
        watch = Stopwatch()
        groups = self.collector.groups(
            update,
            self.config.grpo.prompts_per_update,
            watch,
            on_progress=self.monitor.progress,
            should_stop=self.monitor.should_stop,
        )
        # Before the passes: should one of them fail, these answers are what explains it.
        self.monitor.trajectories(update, [g.record() for g in groups])
        trained = [g for g in groups if g.trainable]
        passes = self.optimise(update, trained, watch) if trained else []
        if passes:
            with watch("swap"), load_into(self.collector.engine, self.learner.adapter):
                pass
        self.report(update, groups, passes, watch)
        self.completed = update
        self.trained += bool(passes)
        self._check_stall(update, groups, bool(passes))

    # -- optimising ------------------------------------------------------------------------------

    def optimise(self, update: int, groups: Sequence[Group], watch: Stopwatch) -> list[PassStats]:
        """``grpo_epochs`` passes over the groups that carry signal."""
        section, seed = self.config.grpo, self.config.grpo.sampling.seed
        orders = [shuffled(groups, seed, update, epoch) for epoch in range(section.grpo_epochs)]
        with watch("score"):
            score_groups(
                self.learner,
                groups,
                first=orders[0][0],
                with_reference=section.kl_coefficient > 0,
                on_progress=self._progress("score"),
            )
        objective = GrpoObjective(section, self.config.training, self.kl_coefficient)
        progress = self._progress("train")
        done, total = 0, len(groups) * section.grpo_epochs

        def on_step() -> None:
            nonlocal done
            done += 1
            progress(done, total)

        with watch("train"), self.learner.counting():
            return [
                run_pass(
                    self.learner,
                    objective,
                    order,
                    self._rates(update, epoch)[: len(groups)],
                    on_step,
                )
                for epoch, order in enumerate(orders)
            ]

    def _rates(self, update: int, epoch: int) -> list[float]:
        """The learning rate of each step that a pass may have.

        The schedule counts the steps that the configuration plans, whether or not a group carried
        signal, so that a run always ends where its schedule does.
        """
        section, training = self.config.grpo, self.config.training
        per_pass = section.prompts_per_update
        total = section.updates * section.grpo_epochs * per_pass
        first = ((update - 1) * section.grpo_epochs + epoch) * per_pass
        return [
            training.lr
            * learning_rate_factor(first + i, total, training.warmup_steps, training.lr_scheduler)
            for i in range(per_pass)
        ]

    # -- reporting -------------------------------------------------------------------------------

    def report(
        self, update: int, groups: Sequence[Group], passes: Sequence[PassStats], watch: Stopwatch
    ) -> None:
        tokens = sum(p.tokens for p in passes)
        values = (
            metrics.reward_metrics(groups)
            | metrics.completion_metrics(groups)
            | metrics.batch_metrics(groups)
            | metrics.sampler_metrics(groups, self.config.training)
            | metrics.reference_metrics(groups)
            | metrics.throughput_metrics(groups, watch.seconds, tokens)
            | metrics.system_metrics(self._process)
            | watch.metrics()
        )
        if passes:
            rate = self._rates(update, len(passes) - 1)[len(passes[-1].norms) - 1]
            values |= metrics.packing_metrics(self.learner.counts)
            values |= metrics.policy_metrics(passes, self.kl_coefficient, rate, self.learner.steps)
        self.monitor.metrics(update, "trained" if passes else "skipped", values)
        self._comment(update, values)
        self._follow_kl(update, values.get("policy/kl"))

    def _comment(self, update: int, values: metrics.Metrics) -> None:
        strange = sorted(name for name, value in values.items() if not math.isfinite(value))
        if strange:
            words = f"not finite, and stored as null: {', '.join(strange)}"
            self.monitor.event(Event("warning", "nonfinite_metric", words, update))
        if self.config.run.verbose:
            lines = (f"{name} = {values[name]:.6g}" for name in sorted(values))
            self.monitor.event(Event("info", "all_metrics", "\n".join(lines), update))

    def _kl_schedule(self) -> KlSchedule | None:
        section = self.config.grpo
        if section.kl_schedule is None:
            return None
        return KlSchedule(
            section.kl_coefficient, section.kl_schedule.warmup_updates, section.kl_schedule.target
        )

    def _follow_kl(self, update: int, measured: float | None) -> None:
        schedule = self._kl_schedule()
        if schedule:
            self.kl_coefficient = schedule.next(self.kl_coefficient, update, measured)

    def _check_stall(self, update: int, groups: Sequence[Group], trained: bool) -> None:
        self.stalled = 0 if trained else self.stalled + 1
        most = self.config.grpo.max_stalled_updates
        if trained:
            return
        values = metrics.reward_metrics(groups)
        spread = f"from {values['reward/min']:.3g} to {values['reward/max']:.3g}"
        if most and self.stalled >= most:
            raise TrainingError(
                f"no group of the last {self.stalled} updates carried signal "
                f"(grpo.max_stalled_updates = {most}): within each group all rewards are equal, or "
                f"fewer than two answers count. In the last update rewards went {spread}. The "
                f"reward is too easy or too hard for this model, or answers are cut off: look at "
                f"them with `retrograd check {self.config.source} --sample 8`, give partial "
                f"credit, or change the prompts."
            )
        self.monitor.event(
            Event("info", "update_skipped", f"no group carried signal; rewards {spread}", update)
        )

    def _progress(self, stage: Stage) -> Callable[[int, int], None]:
        return partial(self.monitor.progress, stage)
