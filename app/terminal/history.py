"""What a run has shown so far: the rewards, the pace and the time left."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trainer.monitor import RunInfo, Stage, UpdateStatus

STAGES: tuple[Stage, ...] = ("generate", "reward", "score", "train")
TIMED = ("generate", "reward", "judge", "score", "train", "swap")
_PACE = 5  # updates over which the pace is averaged
_FIRST_GUESS: Mapping[Stage, float] = {"generate": 0.5, "reward": 0.05, "score": 0.1, "train": 0.35}


@dataclass(frozen=True, slots=True)
class UpdateRow:
    """One finished update. ``change`` is the reward's, against the update before."""

    update: int
    total: int
    status: UpdateStatus
    values: Mapping[str, float]
    change: float | None

    def stage_seconds(self) -> dict[str, float]:
        """Seconds by stage, for the stages that this update measured."""
        keys = {name: f"timing/{name}_seconds" for name in TIMED}
        return {name: self.values[key] for name, key in keys.items() if key in self.values}


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """The policy after ``update`` (0: before the first), measured on ``prompts`` held-out prompts.
    ``change`` is the reward's, against the evaluation before."""

    update: int
    prompts: int
    reward: float
    change: float | None


@dataclass(slots=True)
class RunHistory:
    """``checkpoint`` is the file of the last one that was saved."""

    info: RunInfo
    clock: Callable[[], float]
    started: float = field(init=False)
    rewards: list[float] = field(default_factory=list)
    evaluations: list[EvaluationRow] = field(default_factory=list)
    checkpoint: str | None = None
    finished_updates: int = field(init=False)
    stage: Stage = "prepare"
    stage_done: int = 0
    stage_total: int = 0
    _ends: list[float] = field(default_factory=list)
    _shares: Mapping[Stage, float] = field(default_factory=lambda: _FIRST_GUESS)

    def __post_init__(self) -> None:
        self.started = self.clock()
        self.finished_updates = self.info.resumed_from_update or 0

    @property
    def elapsed(self) -> float:
        return self.clock() - self.started

    def progress(self, stage: Stage, done: int, total: int) -> None:
        loaded = stage != "prepare" or done >= total
        if loaded and not self._ends:
            self._ends.append(self.clock())  # the first update begins here, not with the loading
        self.stage, self.stage_done, self.stage_total = stage, done, total
        if stage == "prepare" and loaded:
            self.stage, self.stage_done, self.stage_total = "generate", 0, 0

    def add(self, update: int, status: UpdateStatus, values: Mapping[str, float]) -> UpdateRow:
        reward = values.get("reward/mean")
        change = reward - self.rewards[-1] if reward is not None and self.rewards else None
        if reward is not None and math.isfinite(reward):
            self.rewards.append(reward)
        row = UpdateRow(update, self.info.updates, status, values, change)
        self.finished_updates = update
        self._ends.append(self.clock())
        self._learn_shares(row)
        self.stage, self.stage_done, self.stage_total = "generate", 0, 0
        return row

    def evaluated(self, update: int, prompts: int, values: Mapping[str, float]) -> EvaluationRow:
        reward = values["eval/mean_reward"]
        change = reward - self.evaluations[-1].reward if self.evaluations else None
        row = EvaluationRow(update, prompts, reward, change)
        self.evaluations.append(row)
        if len(self._ends) == 1:
            self._ends = [self.clock()]  # the first update begins now
        self.stage, self.stage_done, self.stage_total = "generate", 0, 0
        return row

    def fraction_done(self) -> float:
        """Share of the whole run, the update under way included, in [0, 1]."""
        return min(1.0, (self.finished_updates + self._within()) / max(1, self.info.updates))

    def seconds_left(self) -> float | None:
        """Seconds to the end at the pace of the last few updates; None before the first ends."""
        recent = self._ends[-_PACE - 1 :]
        if len(recent) < 2:
            return None
        each = (recent[-1] - recent[0]) / (len(recent) - 1)
        since_last = min(self.clock() - recent[-1], each)
        return max(0.0, each * (self.info.updates - self.finished_updates) - since_last)

    def first_and_last(self) -> tuple[float, float, int] | None:
        """Mean reward over the first and over the last updates, and how many those are: five, or
        half of a shorter run."""
        count = min(5, len(self.rewards) // 2)
        if count == 0:
            return None
        return sum(self.rewards[:count]) / count, sum(self.rewards[-count:]) / count, count

    def _within(self) -> float:
        if self.stage not in STAGES:
            return 0.0
        before = sum(self._shares[stage] for stage in STAGES[: STAGES.index(self.stage)])
        part = self.stage_done / self.stage_total if self.stage_total else 0.0
        return min(1.0, before + part * self._shares[self.stage])

    def _learn_shares(self, row: UpdateRow) -> None:
        spent = row.stage_seconds()
        total = sum(spent.get(stage, 0.0) for stage in STAGES)
        if total > 0 and math.isfinite(total):
            self._shares = {stage: spent.get(stage, 0.0) / total for stage in STAGES}
