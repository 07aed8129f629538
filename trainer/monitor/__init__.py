"""Watching a run: the protocol, several monitors as one, and the JSON lines on disk."""

from trainer.monitor.base import SilentMonitor
from trainer.monitor.composite import CompositeMonitor
from trainer.monitor.jsonl import JsonlMonitor
from trainer.monitor.protocol import (
    Event,
    GroupRecord,
    Monitor,
    Outcome,
    Request,
    RunInfo,
    SkipReason,
    Stage,
    Trajectory,
    UpdateStatus,
)

__all__ = [
    "CompositeMonitor",
    "Event",
    "GroupRecord",
    "JsonlMonitor",
    "Monitor",
    "Outcome",
    "Request",
    "RunInfo",
    "SilentMonitor",
    "SkipReason",
    "Stage",
    "Trajectory",
    "UpdateStatus",
]
