"""What the loop asks of an algorithm, and what it lends it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

from trainer.algorithms.collect import Collector
from trainer.algorithms.groups import Group
from trainer.algorithms.metrics import Metrics
from trainer.algorithms.objectives import Objective, PassStats
from trainer.algorithms.optimise import learning_rates, run_pass
from trainer.algorithms.stopwatch import Stopwatch
from trainer.checkpoint.file import State
from trainer.config.models import RolloutConfig
from trainer.model.learner import Learner
from trainer.monitor.protocol import Monitor, Stage

G = TypeVar("G", bound=Group)


class Method(Protocol[G]):
    """How an algorithm turns answers into steps. Updates count from 1."""

    kl_coefficient: float

    def collect(self, update: int, watch: Stopwatch) -> list[G]:
        """The answers of ``update``, scored, each with its advantage."""
        ...

    def optimise(self, update: int, groups: Sequence[G], watch: Stopwatch) -> list[PassStats]:
        """The passes over those answers that carry signal; none when no answer does."""
        ...

    def metrics(self, groups: Sequence[G]) -> Metrics:
        """The numbers that only this algorithm has."""
        ...

    def conclude(self, update: int, values: Metrics, trained: bool) -> None:
        """What the update means for the next one. Raises TrainingError when there should be none.
        ``values`` are all of its metrics."""
        ...

    def state(self) -> State:
        """What it carries from update to update."""
        ...

    def load_state(self, state: State) -> None: ...


@dataclass(frozen=True, slots=True)
class Tools(Generic[G]):
    """What every algorithm works with."""

    config: RolloutConfig
    collector: Collector[G]
    learner: Learner
    monitor: Monitor

    def sample(
        self, update: int, count: int, watch: Stopwatch, *, position: int, first_slot: int = 0
    ) -> list[G]:
        """Answers with their rewards to ``count`` prompts, as `Collector.groups` takes them."""
        return self.collector.groups(
            update,
            count,
            watch,
            position=position,
            first_slot=first_slot,
            on_progress=self.monitor.progress,
            should_stop=self.monitor.should_stop,
        )

    def run_passes(
        self,
        update: int,
        objective: Objective[G],
        epochs: Sequence[Sequence[Sequence[G]]],
        watch: Stopwatch,
    ) -> list[PassStats]:
        """One pass for each of ``epochs``, one optimizer step for each set of groups in it."""
        section, training = self.config.rollout, self.config.training
        done, total = 0, sum(len(steps) for steps in epochs)

        def on_step() -> None:
            nonlocal done
            done += 1
            self.monitor.progress("train", done, total)

        with watch("train"), self.learner.counting():
            return [
                run_pass(
                    self.learner,
                    objective,
                    steps,
                    learning_rates(section, training, update, epoch)[: len(steps)],
                    on_step,
                )
                for epoch, steps in enumerate(epochs)
            ]

    def progress(self, stage: Stage) -> Callable[[int, int], None]:
        return partial(self.monitor.progress, stage)
