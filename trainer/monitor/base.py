"""A monitor that does nothing: what other monitors start from, and the one for silent runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainer.monitor.protocol import (
    Event,
    GroupRecord,
    Outcome,
    Request,
    RunInfo,
    Stage,
    UpdateStatus,
)


class SilentMonitor:
    """Takes every call of ``Monitor`` without effect, and never asks a run to stop."""

    def run_started(self, info: RunInfo) -> None: ...

    def progress(self, stage: Stage, done: int, total: int) -> None: ...

    def trajectories(self, update: int, groups: Sequence[GroupRecord]) -> None: ...

    def metrics(self, update: int, status: UpdateStatus, values: Mapping[str, float]) -> None: ...

    def evaluation(
        self, update: int, groups: Sequence[GroupRecord], values: Mapping[str, float]
    ) -> None: ...

    def event(self, event: Event) -> None: ...

    def run_finished(self, outcome: Outcome) -> None: ...

    def settle(self) -> None: ...

    def should_stop(self) -> bool:
        return False

    def requested(self) -> frozenset[Request]:
        return frozenset()
