"""What keeping a run in the store costs that run. Used by dashboard.py.

    python benchmarks/monitoring_cost.py CONFIG.toml FOLDER

trains as CONFIG says, with a store in FOLDER, and prints one JSON object: the seconds that the
trainer's thread spent in the store's monitor, the processor seconds of the monitor's own threads,
and the wall and processor seconds of all updates together. With `none` for FOLDER there is no
store.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import psutil

from app.store.database import Store
from app.store.monitor import StoreMonitor
from app.store.registry import register
from trainer.config import load_config
from trainer.monitor import (
    CompositeMonitor,
    Event,
    GroupRecord,
    Outcome,
    Request,
    RunInfo,
    SilentMonitor,
    Stage,
    UpdateStatus,
)
from trainer.run import run

T = TypeVar("T")


class Updates(SilentMonitor):
    """Takes the time of all updates, and the processor time of this process meanwhile."""

    def __init__(self) -> None:
        self.count = 0
        self.wall = 0.0
        self.processor = 0.0
        self.began: tuple[float, float] | None = None

    def progress(self, stage: Stage, *_: object) -> None:
        # The first words about an update are the first that come after the preparations.
        if stage == "generate" and self.began is None:
            self.began = (time.perf_counter(), time.process_time())

    def metrics(self, update: int, *_: object) -> None:
        assert self.began is not None
        self.count = update
        self.wall = time.perf_counter() - self.began[0]
        self.processor = time.process_time() - self.began[1]


class Timed(SilentMonitor):
    """Takes the time that the trainer's thread spends in another monitor."""

    def __init__(self, monitor: StoreMonitor, updates: Updates) -> None:
        self._monitor, self._updates = monitor, updates
        self.on_thread = 0.0
        self.beside = 0.0
        self._beside_before = 0.0

    def run_started(self, info: RunInfo) -> None:
        self._monitor.run_started(info)

    def progress(self, stage: Stage, done: int, total: int) -> None:
        first = self._updates.began is None
        self._take(lambda: self._monitor.progress(stage, done, total))
        if first:
            self._beside_before, self.on_thread = self._processor(), 0.0

    def trajectories(self, update: int, groups: Sequence[GroupRecord]) -> None:
        self._take(lambda: self._monitor.trajectories(update, groups))

    def metrics(self, update: int, status: UpdateStatus, values: Mapping[str, float]) -> None:
        self._take(lambda: self._monitor.metrics(update, status, values))

    def evaluation(
        self, update: int, groups: Sequence[GroupRecord], values: Mapping[str, float]
    ) -> None:
        self._take(lambda: self._monitor.evaluation(update, groups, values))

    def event(self, event: Event) -> None:
        self._take(lambda: self._monitor.event(event))

    def settle(self) -> None:
        self._take(self._monitor.settle)

    def should_stop(self) -> bool:
        return self._take(self._monitor.should_stop)

    def requested(self) -> frozenset[Request]:
        return self._take(self._monitor.requested)

    def run_finished(self, outcome: Outcome) -> None:
        # The last rows may still wait; their thread's time belongs to the updates.
        self._monitor.settle()
        self.beside = self._processor() - self._beside_before
        self._monitor.run_finished(outcome)

    def _take(self, call: Callable[[], T]) -> T:
        start = time.perf_counter()
        try:
            return call()
        finally:
            self.on_thread += time.perf_counter() - start

    @staticmethod
    def _processor() -> float:
        """Processor seconds of the threads that the monitor started."""
        known = {t.id: t.user_time + t.system_time for t in psutil.Process().threads()}
        names = ("store of run", "digest of the model")
        ours = [t.native_id for t in threading.enumerate() if t.name.startswith(names)]
        return sum(known.get(number, 0.0) for number in ours if number is not None)


def main() -> None:
    config = load_config(Path(sys.argv[1]))
    updates = Updates()
    if sys.argv[2] == "none":
        outcome = run(config, CompositeMonitor([updates]))
        cost = {"on_thread": 0.0, "beside": 0.0}
    else:
        store = Store.open(str(Path(sys.argv[2]) / "cost.db"))
        timed = Timed(StoreMonitor(store, partial(register, store, config)), updates)
        outcome = run(config, CompositeMonitor([updates, timed]))
        store.close()
        cost = {"on_thread": timed.on_thread, "beside": timed.beside}
    assert outcome.status == "completed", outcome.message
    measured = {"updates": updates.count, "wall": updates.wall, "processor": updates.processor}
    print(json.dumps(cost | measured))


if __name__ == "__main__":
    main()
