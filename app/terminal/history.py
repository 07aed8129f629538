"""What a run has shown so far: the rewards or losses, the pace and the time left."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from trainer.monitor import RunInfo, Stage, UpdateStatus

STAGES: tuple[Stage, ...] = ("generate", "reward", "score", "train")
TIMED = ("generate", "reward", "judge", "score", "train", "swap")
SAYS_IF_IT_LEARNS = ("reward/mean", "sft/loss")
_PACE = 5  # updates over which the pace is averaged
_FIRST_GUESS: Mapping[Stage, float] = {"generate": 0.5, "reward": 0.05, "score": 0.1, "train": 0.35}


@dataclass(frozen=True, slots=True)
class UpdateRow:
    """One finished update. ``change`` is that of the reward, or of the loss in SFT, against the
    update before."""

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
    """The policy after ``update`` (0: before the first), measured on ``count`` held-out prompts or
    texts. ``figure`` is their reward, or their loss; ``change`` is its, against the evaluation
    before."""

    update: int
    count: int
    figure: float
    change: float | None
    of: Literal["reward", "loss"] = "reward"


@dataclass(slots=True)
class RunHistory:
    """``figures`` are the rewards so far, or the losses of SFT; ``checkpoint`` is the file of the
    last one that was saved."""

    info: RunInfo
    clock: Callable[[], float]
    started: float = field(init=False)
    figures: list[float] = field(default_factory=list)
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
        if self.info.algorithm == "sft":
            self._shares = {"generate": 0.0, "reward": 0.0, "score": 0.0, "train": 1.0}
        self.finished_updates = self.info.resumed_from_update or 0

    @property
    def followed(self) -> str:
        """The metric that says whether the run learns."""
        return SAYS_IF_IT_LEARNS[self.info.algorithm == "sft"]

    @property
    def followed_name(self) -> str:
        return "loss" if self.info.algorithm == "sft" else "reward"

    @property
    def _first_stage(self) -> Stage:
        """With which an update begins."""
        return "train" if self.info.algorithm == "sft" else "generate"

    @property
    def elapsed(self) -> float:
        return self.clock() - self.started

    def progress(self, stage: Stage, done: int, total: int) -> None:
        loaded = stage != "prepare" or done >= total
        if loaded and not self._ends:
            self._ends.append(self.clock())  # the first update begins here, not with the loading
        self.stage, self.stage_done, self.stage_total = stage, done, total
        if stage == "prepare" and loaded:
            self.stage, self.stage_done, self.stage_total = self._first_stage, 0, 0

    def add(self, update: int, status: UpdateStatus, values: Mapping[str, float]) -> UpdateRow:
        figure = values.get(self.followed)
        change = figure - self.figures[-1] if figure is not None and self.figures else None
        if figure is not None and math.isfinite(figure):
            self.figures.append(figure)
        row = UpdateRow(update, self.info.updates, status, values, change)
        self.finished_updates = update
        self._ends.append(self.clock())
        self._learn_shares(row)
        self.stage, self.stage_done, self.stage_total = self._first_stage, 0, 0
        return row

    def evaluated(self, update: int, prompts: int, values: Mapping[str, float]) -> EvaluationRow:
        is_loss = "eval/loss" in values
        figure = values["eval/loss" if is_loss else "eval/mean_reward"]
        change = figure - self.evaluations[-1].figure if self.evaluations else None
        count = int(values["eval/texts"]) if is_loss else prompts
        row = EvaluationRow(update, count, figure, change, "loss" if is_loss else "reward")
        self.evaluations.append(row)
        if len(self._ends) == 1:
            self._ends = [self.clock()]  # the first update begins now
        self.stage, self.stage_done, self.stage_total = self._first_stage, 0, 0
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
        """Mean of `followed` over the first and over the last updates, and how many those are:
        five, or half of a shorter run."""
        count = min(5, len(self.figures) // 2)
        if count == 0:
            return None
        return sum(self.figures[:count]) / count, sum(self.figures[-count:]) / count, count

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
