"""The Monitor that keeps a run in the store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from app.store.artifacts import Artifacts
from app.store.database import Store, reason
from app.store.errors import StoreError
from app.store.inbox import EndTold, EventTold, GroupTold, Inbox, Kind, RunTold, ValuesTold
from app.store.models import Run
from app.store.registry import look_at_model
from app.store.segments import begin
from app.store.writer import Writer
from app.text import counted
from trainer.health.resolve import lookup
from trainer.monitor import (
    Event,
    GroupRecord,
    Outcome,
    Request,
    RunInfo,
    Stage,
    UpdateStatus,
)

_SETTLE_SECONDS = 5.0
_FAILING_SECONDS = 0.05
_END_SECONDS = 10.0
_MODEL_SECONDS = 2.0


class StoreMonitor:
    """Keeps all that it is told of one run. Only `run_started` touches the database on the
    trainer's thread, and may raise; all else is handed to a thread of its own, in bounded memory.
    Where the database cannot be written to for long, rows are lost, counted in ``runs.lost`` and
    told to ``notify``; training goes on.

    ``run_id`` is the run's row, or what finds it from what is told when the run really starts.
    ``notify`` takes a line for the person who waits, on the trainer's thread.
    """

    def __init__(
        self,
        store: Store,
        run_id: int | Callable[[RunInfo], int],
        notify: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._store, self._run_id, self._notify = store, run_id, notify
        self._inbox = Inbox()
        self._writer: Writer | None = None
        self._artifacts: Artifacts | None = None
        self._every = 1
        self._stop_told = False
        self._looking: threading.Thread | None = None

    def run_started(self, info: RunInfo) -> None:
        """Raises StoreError where the run cannot be entered in the store."""
        try:
            run_id = self._run_id if isinstance(self._run_id, int) else self._run_id(info)
            begun = begin(self._store, run_id, info)
        except DBAPIError as error:
            raise StoreError(
                f"The run cannot be recorded in {self._store.place}: {reason(error)}. Mend that, "
                "name another store with --store, or do without one with --store none."
            ) from error
        self._every = int(lookup(info.params, "observe.every") or 1)
        self._artifacts = Artifacts(self._store, run_id, info)
        self._writer = Writer(self._store, begun.place, self._inbox, begun.digest, begun.lost)
        self._writer.on_checkpoint = self._artifacts.note_checkpoints
        self._writer.start()
        self._looking = look_at_model(
            self._store,
            Path(info.model),
            begun.provenance,
            lambda found: self.note({"provenance": found}),
        )

    @property
    def run_id(self) -> int | None:
        """The run's row, once it has started."""
        return self._artifacts.run_id if self._artifacts else None

    def progress(self, stage: Stage, done: int, total: int) -> None:
        if self._writer is not None:
            self._writer.progress = (stage, done, total)

    def trajectories(self, update: int, groups: Sequence[GroupRecord]) -> None:
        self._groups(update, "train", groups, with_text=(update - 1) % self._every == 0)

    def metrics(self, update: int, status: UpdateStatus, values: Mapping[str, float]) -> None:
        self._inbox.put(ValuesTold(time.time(), update, "train", status, dict(values)))

    def evaluation(
        self, update: int, groups: Sequence[GroupRecord], values: Mapping[str, float]
    ) -> None:
        self._groups(update, "evaluation", groups, with_text=True)
        self._inbox.put(ValuesTold(time.time(), update, "evaluation", "evaluation", dict(values)))

    def event(self, event: Event) -> None:
        self._inbox.put(EventTold(time.time(), event))

    def note(self, values: Mapping[str, object]) -> None:
        """Set columns of the run, such as what became known of its model."""
        self._inbox.put(RunTold(time.time(), dict(values)))

    def run_finished(self, outcome: Outcome) -> None:
        """Waits until all is kept, for so long as there is hope."""
        writer = self._writer
        if writer is None:
            return
        if self._looking is not None:
            self._looking.join(_MODEL_SECONDS)
        self._inbox.put(EndTold(time.time(), outcome))
        if not self._inbox.wait_until_settled(_END_SECONDS):
            writer.give_up()
        self.abandon()
        self._tell_news()
        if not writer.is_alive():
            self._keep_files(outcome)
        if self._inbox.lost:
            self._notify(
                f"{counted(self._inbox.lost, 'row')} of this run could not be stored in "
                f"{self._store.place}" + (f" ({writer.failure})." if writer.failure else ".")
            )

    def abandon(self) -> None:
        """End the thread that writes, and leave the run as it is."""
        self._inbox.close()
        if self._looking is not None:
            self._looking.join(_MODEL_SECONDS)
        if self._writer is not None:
            self._writer.join(_END_SECONDS)

    def should_stop(self) -> bool:
        self._tell_news()
        if self._writer is None or not self._writer.stop_asked:
            return False
        if not self._stop_told:
            self._stop_told = True
            self._notify(
                "Somebody asked this run to stop: stopping, and keeping the adapter as it is after "
                "the last finished update."
            )
        return True

    def requested(self) -> frozenset[Request]:
        """What people asked for since the last call, apart from stopping."""
        return frozenset() if self._writer is None else self._writer.requested()

    def settle(self) -> None:
        """Wait until all that was told is in the database, for five seconds at most; hardly at all
        while it cannot be written to, since training is not to wait for that."""
        if self._writer is not None:
            patience = _FAILING_SECONDS if self._writer.failing else _SETTLE_SECONDS
            self._inbox.wait_until_settled(patience)

    def _tell_news(self) -> None:
        while self._writer is not None and self._writer.news:
            self._notify(self._writer.news.popleft())

    def _groups(
        self, update: int, kind: Kind, groups: Sequence[GroupRecord], *, with_text: bool
    ) -> None:
        now = time.time()
        for group in groups:
            self._inbox.put(GroupTold(now, update, kind, group, with_text))

    def _keep_files(self, outcome: Outcome) -> None:
        assert self._artifacts is not None
        try:
            with self._store.read() as session:
                run = session.get(Run, self._artifacts.run_id)
            if run is not None:
                # Where the output is a merged model, the adapter is named beside it.
                merged, adapter = (
                    (outcome.output, outcome.adapter) if outcome.adapter else (None, outcome.output)
                )
                self._artifacts.note_all(
                    Path(run.config_path),
                    outcome.updates,
                    adapter=Path(adapter) if adapter else None,
                    model=Path(merged) if merged else None,
                )
        except DBAPIError as error:
            self._notify(f"The run's files are not listed in the store: {reason(error)}.")
