"""Several monitors behind one door, and what happens when one of them breaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer.errors import RetrogradError
from trainer.monitor.protocol import (
    Event,
    GroupRecord,
    Monitor,
    Outcome,
    Request,
    RunInfo,
    Stage,
    UpdateStatus,
)

_REPORTS = 6
"""How often a monitor's trouble is told while the run goes on: it may come and go."""


@dataclass(slots=True)
class _Member:
    monitor: Monitor
    lost: int = 0
    first_failure: str = ""
    failing: str = ""
    """The call that it raised at last, until it takes that one again."""
    finished: bool = field(default=False)
    reports: int = 0

    @property
    def name(self) -> str:
        return type(self.monitor).__name__


class CompositeMonitor:
    """Passes every call to each of ``monitors``, in their order.

    Where one of them raises in ``run_started``, nothing is trained: those that had started are told
    that the run failed, and the error goes on. Once started, a monitor that raises loses that one
    call and nothing else: the loss is counted, the other monitors get a ``monitor_failed`` event
    when that begins and a ``monitor_again`` event when it ends, and when the run ends one
    ``monitor_losses`` event lists what each monitor missed.
    """

    def __init__(self, monitors: Sequence[Monitor]) -> None:
        self._members = [_Member(monitor) for monitor in monitors]

    @property
    def losses(self) -> dict[str, int]:
        """Calls lost so far, by the class name of the monitor that raised."""
        counts: dict[str, int] = {}
        for member in self._members:
            if member.lost:
                counts[member.name] = counts.get(member.name, 0) + member.lost
        return counts

    def run_started(self, info: RunInfo) -> None:
        for index, member in enumerate(self._members):
            try:
                member.monitor.run_started(info)
            except BaseException as error:
                self._abandon(self._members[:index], f"{member.name} could not start: {error}")
                if isinstance(error, RetrogradError) or not isinstance(error, Exception):
                    raise
                raise RetrogradError(
                    f"{member.name} could not start, so the run was not begun: "
                    f"{type(error).__name__}: {error}"
                ) from error

    def progress(self, stage: Stage, done: int, total: int) -> None:
        self._tell_all("progress", lambda monitor: monitor.progress(stage, done, total))

    def trajectories(self, update: int, groups: Sequence[GroupRecord]) -> None:
        self._tell_all("trajectories", lambda monitor: monitor.trajectories(update, groups))

    def metrics(self, update: int, status: UpdateStatus, values: Mapping[str, float]) -> None:
        self._tell_all("metrics", lambda monitor: monitor.metrics(update, status, values))

    def evaluation(
        self, update: int, groups: Sequence[GroupRecord], values: Mapping[str, float]
    ) -> None:
        self._tell_all("evaluation", lambda monitor: monitor.evaluation(update, groups, values))

    def event(self, event: Event) -> None:
        self._tell_all("event", lambda monitor: monitor.event(event))

    def run_finished(self, outcome: Outcome) -> None:
        if self.losses:
            self.event(_losses_event(self._members))
        for member in self._members:
            self._finish(member, outcome)

    def settle(self) -> None:
        self._tell_all("settle", lambda monitor: monitor.settle())

    def requested(self) -> frozenset[Request]:
        wishes: list[frozenset[Request]] = []
        self._tell_all("requested", lambda monitor: wishes.append(monitor.requested()))
        return frozenset().union(*wishes)

    def should_stop(self) -> bool:
        wishes: list[bool] = []
        self._tell_all("should_stop", lambda monitor: wishes.append(monitor.should_stop()))
        return any(wishes)

    def _tell_all(self, name: str, call: Callable[[Monitor], None]) -> None:
        for member in self._members:
            self._tell(member, name, call)

    def _tell(self, member: _Member, name: str, call: Callable[[Monitor], None]) -> None:
        try:
            call(member.monitor)
        except Exception as error:  # noqa: BLE001 - whatever a watcher does, training goes on
            self._failed(member, name, f"{type(error).__name__}: {error}")
        else:
            if member.failing == name:
                member.failing = ""
                words = f"{member.name} records again; it has missed {member.lost} so far."
                self._report(member, "monitor_again", words, {"lost": member.lost})

    def _failed(self, member: _Member, name: str, why: str) -> None:
        member.lost += 1
        member.first_failure = member.first_failure or why
        if not member.failing:
            member.failing = name
            words = f"{member.name} failed and may miss records; training goes on. {why}"
            self._report(member, "monitor_failed", words, {"error": why})

    def _report(self, broken: _Member, code: str, words: str, data: Mapping[str, Any]) -> None:
        broken.reports += 1
        if broken.reports > _REPORTS:
            return
        event = Event("warning", code, words, data={"monitor": broken.name, **data})
        for member in self._members:
            if member is not broken and not member.finished:
                self._tell(member, "event", lambda monitor: monitor.event(event))

    def _finish(self, member: _Member, outcome: Outcome) -> None:
        self._tell(member, "run_finished", lambda monitor: monitor.run_finished(outcome))
        member.finished = True

    def _abandon(self, started: Sequence[_Member], reason: str) -> None:
        outcome = Outcome(status="failed", updates=0, output=None, message=reason)
        for member in started:
            self._finish(member, outcome)


def _losses_event(members: Sequence[_Member]) -> Event:
    broken = [member for member in members if member.lost]
    each = "; ".join(
        f"{member.name} missed {member.lost} (first: {member.first_failure})" for member in broken
    )
    return Event(
        level="warning",
        code="monitor_losses",
        message=f"Not everything was recorded. Calls that raised: {each}.",
        data={"losses": {member.name: member.lost for member in broken}},
    )
