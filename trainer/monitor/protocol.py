"""The door between the trainer and whoever watches it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from trainer.chat.messages import PromptLine
from trainer.health.audit import AuditFlag
from trainer.health.findings import Finding
from trainer.rollout.answers import Answer

SkipReason = Literal["truncated", "zero_signal", "judge_dropped", "update_skipped", "evaluation"]
Stage = Literal["prepare", "generate", "reward", "judge", "score", "train", "evaluate", "merge"]
UpdateStatus = Literal["trained", "skipped"]
Request = Literal["checkpoint", "evaluate"]


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What is known when a run starts. ``params`` is the resolved configuration, as JSON types;
    ``facts`` are short human lines about the model, the adapter and the machine.
    ``resumed_from_update`` is the last update of the run that this one continues; ``run_id`` is the
    name that the run keeps through all of them, and no other run has."""

    name: str
    algorithm: str
    model: str
    output: str
    updates: int
    params: Mapping[str, Any]
    facts: Mapping[str, str]
    resumed_from_update: int | None = None
    run_id: str = ""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One answer with all that was decided about it.

    ``reward`` is the one trained on; ``reward_raw`` is the program's own. ``trained`` tells whether
    the answer entered the loss; when it did not, ``skip_reason`` says why. ``audit`` are the signs
    of a gamed reward that were found in its text; ``judge_words`` is how the judge explained its
    verdict, or why it gave none.
    """

    member: int
    answer: Answer
    reward: float
    reward_raw: float
    judge_term: float
    parts: Mapping[str, float]
    advantage: float
    trained: bool
    skip_reason: SkipReason | None
    audit: tuple[AuditFlag, ...] = ()
    judge_words: str | None = None


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """The answers to one prompt in one update; ``group`` counts from 0 within the update."""

    group: int
    prompt: PromptLine
    trajectories: Sequence[Trajectory]


@dataclass(frozen=True, slots=True)
class Event:
    """Something worth a line in the journal."""

    level: Literal["info", "warning", "error"]
    code: str
    message: str
    update: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. ``output`` is what was written to the output's path, an adapter or a merged
    model. ``adapter`` is the one that belongs to such a model, and is there also where merging
    failed. ``findings`` are what is wrong with the run's metrics by then, most important first."""

    status: Literal["completed", "stopped", "failed"]
    updates: int
    output: str | None
    message: str
    findings: Sequence[Finding] = ()
    adapter: str | None = None


class Monitor(Protocol):
    """Receives what happens in a run, on the trainer's thread, in order.

    What ``run_started`` raises ends the run before it trains; an ``Exception`` out of any other
    method does not (see ``trainer.monitor.composite``). Updates count from 1.
    """

    def run_started(self, info: RunInfo) -> None: ...

    def progress(self, stage: Stage, done: int, total: int) -> None:
        """``done`` of ``total`` units of this update's stage are finished (answers, passes); a
        ``total`` of 0 is not known. ``merge`` comes once, after the last update."""

    def trajectories(self, update: int, groups: Sequence[GroupRecord]) -> None: ...

    def metrics(self, update: int, status: UpdateStatus, values: Mapping[str, float]) -> None: ...

    def evaluation(
        self, update: int, groups: Sequence[GroupRecord], values: Mapping[str, float]
    ) -> None:
        """The policy after ``update`` (0: before the first) was measured on held-out prompts, one
        answer each; ``values`` are the ``eval/`` metrics."""
        ...

    def event(self, event: Event) -> None: ...

    def run_finished(self, outcome: Outcome) -> None: ...

    def settle(self) -> None:
        """A checkpoint is about to be written: what was told so far must not be lost any more, or a
        run that goes on from there would have a gap."""
        ...

    def should_stop(self) -> bool:
        """Asked between updates and between sampled tokens; true ends the run cleanly."""
        ...

    def requested(self) -> frozenset[Request]:
        """What somebody wants done out of turn; asked between updates, and answered once."""
        ...
