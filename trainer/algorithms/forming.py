"""From answers and the program's rewards to groups with advantages, by way of the judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trainer.algorithms.collect import Sampled
from trainer.algorithms.groups import Group, form_group, judge_weight
from trainer.algorithms.stopwatch import Stopwatch
from trainer.config.grpo import GrpoSection
from trainer.judge.judge import Judge, Judgement, Ruling
from trainer.judge.policy import groups_to_drop
from trainer.judge.questions import GroupToJudge, JudgeStopped
from trainer.monitor.protocol import Event, Monitor
from trainer.rollout.continuous import RolloutStopped

_SUMMED = "judge/requests"


@dataclass(slots=True)
class GroupForming:
    """Forms GRPO's groups; where there is a judge, with its verdicts in their rewards."""

    section: GrpoSection
    judge: Judge | None
    monitor: Monitor
    _judgements: list[Judgement] = field(default_factory=list)

    def __call__(self, sampled: Sequence[Sampled], watch: Stopwatch) -> list[Group]:
        """Raises JudgeError where more verdicts are missing than may be, and RolloutStopped when
        the monitor asks while the judge is at work."""
        if self.judge is None:
            rulings: Sequence[Ruling | None] = [None] * len(sampled)
        else:
            with watch("judge"):
                rulings = self._ask(self.judge, sampled)
        return [
            form_group(s.slot, s.prompt, s.answers, s.replies, self.section, ruling)
            for s, ruling in zip(sampled, rulings, strict=True)
        ]

    def take_metrics(self) -> dict[str, float]:
        """The ``judge/*`` metrics since the last time: requests are summed, all else is averaged
        over the groups that were asked about."""
        judgements, self._judgements = self._judgements, []
        values: dict[str, float] = {}
        for name in {name for j in judgements for name in j.metrics}:
            parts = [(j.metrics[name], len(j.rulings)) for j in judgements if name in j.metrics]
            total = sum(value * weight for value, weight in parts)
            values[name] = (
                sum(value for value, _ in parts)
                if name == _SUMMED
                else total / sum(weight for _, weight in parts)
            )
        return values

    def _ask(self, judge: Judge, sampled: Sequence[Sampled]) -> Sequence[Ruling]:
        groups = [
            GroupToJudge(
                s.prompt.line,
                [answer.text for answer in s.answers],
                [judge_weight(reply, self.section) for reply in s.replies],
            )
            for s in sampled
        ]
        try:
            judgement = judge.judge(
                groups,
                lambda done, total: self.monitor.progress("judge", done, total),
                self.monitor.should_stop,
            )
        except JudgeStopped as stopped:
            raise RolloutStopped("the run was stopped while the judge was at work") from stopped
        dropped = groups_to_drop(
            judgement.rulings,
            judge_failure=self.section.judge_failure,
            max_dropped_fraction=self.section.max_judge_dropped_fraction,
        )
        if dropped:
            failure = judgement.rulings[dropped[0]].failure
            reason = failure.reason if failure else ""
            words = f"the judge gave no verdict on {len(dropped)} of {len(groups)} groups: {reason}"
            self.monitor.event(Event("warning", "judge_dropped", words))
        self._judgements.append(judgement)
        return judgement.rulings
