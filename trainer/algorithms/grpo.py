"""Group relative policy optimisation.

GRPO (Shao et al., DeepSeekMath, arXiv 2402.03300) as corrected by Dr. GRPO (Liu et al., arXiv
2503.20783) and refined by DAPO (Yu et al., arXiv 2503.14476). Where it differs from a reader's
expectation:

1. One optimizer step for each group, not one for the batch; groups are shuffled in each pass.
2. Groups without signal take no part in any step, the KL penalty's included.
3. ``old`` is the trainer's own log-probability of the sampled ids, so a ratio is exactly 1 before
   the first step; what the sampler computed differently is corrected by a truncated weight.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from trainer.algorithms.forming import GroupForming
from trainer.algorithms.groups import Group
from trainer.algorithms.method import Tools
from trainer.algorithms.metrics import Metrics, group_metrics
from trainer.algorithms.objectives import GrpoObjective, PassStats
from trainer.algorithms.optimise import score_groups, shuffled
from trainer.algorithms.schedules import KlSchedule
from trainer.algorithms.stopwatch import Stopwatch
from trainer.checkpoint.file import State
from trainer.config.models import GrpoConfig
from trainer.errors import TrainingError
from trainer.monitor.protocol import Event


@dataclass(slots=True)
class Grpo:
    """``stalled`` counts the updates in a row that carried no signal, ``position`` the prompts that
    the updates behind it have taken, and ``drawn`` those of the present one."""

    config: GrpoConfig
    tools: Tools[Group]
    forming: GroupForming
    stalled: int = 0
    position: int = 0
    drawn: int = 0
    kl_coefficient: float = field(init=False)

    def __post_init__(self) -> None:
        schedule = self._kl_schedule()
        self.kl_coefficient = schedule.first() if schedule else self.config.grpo.kl_coefficient

    def collect(self, update: int, watch: Stopwatch) -> list[Group]:
        """The groups of an update. With dynamic sampling those without signal are not the end of
        it: prompts after them are drawn until enough groups carry signal, or too many were drawn
        (DAPO, arXiv 2503.14476, section 3.2)."""
        section = self.config.grpo
        wanted, most = section.prompts_per_update, section.prompts_per_update
        if section.dynamic_sampling is not None:
            most *= section.dynamic_sampling.max_resample_factor
        groups: list[Group] = []
        while missing := min(wanted - sum(g.trainable for g in groups), most - len(groups)):
            groups += self.tools.sample(
                update, missing, watch, position=self.position, first_slot=len(groups)
            )
        self.drawn = len(groups)
        return groups

    def optimise(self, update: int, groups: Sequence[Group], watch: Stopwatch) -> list[PassStats]:
        """``grpo_epochs`` passes over the groups that carry signal."""
        section, seed = self.config.grpo, self.config.grpo.sampling.seed
        live = [g for g in groups if g.trainable]
        if not live:
            return []
        orders = [shuffled(live, seed, update, epoch) for epoch in range(section.grpo_epochs)]
        with watch("score"):
            score_groups(
                self.tools.learner,
                live,
                unscored=[orders[0][0].index],
                with_reference=section.kl_coefficient > 0,
                on_progress=self.tools.progress("score"),
            )
        objective = GrpoObjective(section, self.config.training, self.kl_coefficient)
        epochs = [[[group] for group in order] for order in orders]
        return self.tools.run_passes(update, objective, epochs, watch)

    def metrics(self, groups: Sequence[Group]) -> Metrics:
        values = group_metrics(groups) | self.forming.take_metrics()
        dynamic = self.config.grpo.dynamic_sampling
        if dynamic is not None:
            most = self.config.grpo.prompts_per_update * dynamic.max_resample_factor
            values["batch/groups_sampled_fraction"] = len(groups) / most
        return values

    def conclude(self, update: int, values: Metrics, trained: bool) -> None:
        self.position += self.drawn
        schedule = self._kl_schedule()
        if schedule:
            measured = values.get("policy/kl")
            self.kl_coefficient = schedule.next(self.kl_coefficient, update, measured)
        self._check_stall(update, values, trained)

    def state(self) -> State:
        return {
            "stalled": self.stalled,
            "position": self.position,
            "kl_coefficient": self.kl_coefficient,
        }

    def load_state(self, state: State) -> None:
        self.stalled, self.position = state["stalled"], state["position"]
        self.kl_coefficient = state["kl_coefficient"]

    def _kl_schedule(self) -> KlSchedule | None:
        section = self.config.grpo
        if section.kl_schedule is None:
            return None
        return KlSchedule(
            section.kl_coefficient, section.kl_schedule.warmup_updates, section.kl_schedule.target
        )

    def _check_stall(self, update: int, values: Metrics, trained: bool) -> None:
        self.stalled = 0 if trained else self.stalled + 1
        most = self.config.grpo.max_stalled_updates
        if trained:
            return
        spread = f"from {values['reward/min']:.3g} to {values['reward/max']:.3g}"
        if most and self.stalled >= most:
            raise TrainingError(
                f"no group of the last {self.stalled} updates carried signal "
                f"(grpo.max_stalled_updates = {most}): within each group all rewards are equal, or "
                f"fewer than two answers count. In the last update rewards went {spread}. The "
                f"reward is too easy or too hard for this model, or answers are cut off: look at "
                f"them with `retrograd check {shlex.quote(str(self.config.source))} --sample 8`, "
                f"give partial credit, or change the prompts."
            )
        self.tools.monitor.event(
            Event("info", "update_skipped", f"no group carried signal; rewards {spread}", update)
        )
