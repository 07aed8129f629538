"""What the training loop knows of checkpoints: tell it that an update is done, or that all is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from trainer.checkpoint.file import State
from trainer.checkpoint.identity import Identity
from trainer.checkpoint.store import Store
from trainer.monitor.protocol import Event, Monitor


@dataclass
class Keeper:
    """``identity_of`` is asked once, at the first save: it reads the whole model."""

    store: Store
    identity_of: Callable[[], Identity]
    monitor: Monitor
    with_steps: bool = True
    with_best: bool = False
    saved: int = 0
    _failing: str = ""
    """Why the last one could not be written."""

    @cached_property
    def _identity(self) -> Identity:
        return self.identity_of()

    def update_done(self, update: int, step: int, state: Callable[[], State]) -> None:
        """``update`` is behind the run, after ``step`` optimizer steps. Saves where that is due."""
        if self.with_steps and self.store.is_due(step):
            self._save(update, step, state)

    def better(self, update: int, step: int, state: Callable[[], State]) -> None:
        """The policy after ``update`` is the best one evaluated so far."""
        if self.with_best:
            self._save(update, step, state, best=True)

    def asked(self, update: int, step: int, state: Callable[[], State]) -> None:
        """Somebody wants ``update`` kept, due or not."""
        if update > self.saved:
            self._failing = ""  # who asks is answered
            self._save(update, step, state)

    def ended(self, update: int, step: int, state: Callable[[], State]) -> None:
        """The run makes no further update. Saves what is not saved yet."""
        if self.with_steps and update > self.saved:
            self._failing = ""
            self._save(update, step, state)

    def _save(
        self, update: int, step: int, state: Callable[[], State], *, best: bool = False
    ) -> None:
        self.monitor.settle()
        try:
            whole = {"identity": self._identity, "update": update, "loop": state()}
            path = self.store.save_best(whole) if best else self.store.save(update, step, whole)
        except OSError as error:
            # The run is worth more than its checkpoint: it goes on, and the next one may fit.
            self._tell_failure(update, error.strerror or str(error))
            return
        self._failing = ""
        self.saved = self.saved if best else update
        words = f"saved {path}" + (", the best one so far" if best else "")
        self.monitor.event(Event("info", "checkpoint", words, update, {"path": str(path)}))

    def _tell_failure(self, update: int, why: str) -> None:
        """Once where it begins: it is tried again after each update, and may fail a thousand
        times."""
        if why == self._failing:
            return
        self._failing = why
        newest = f"the newest one is that of update {self.saved}" if self.saved else "there is none"
        place = self.store.folder
        words = (
            f"the checkpoint of update {update} could not be written to {place}: {why}. "
            f"Make room there, or mend what keeps it; until then {newest}. Training goes on, and "
            "tries again after the next update"
        )
        self.monitor.event(Event("error", "checkpoint", words, update))
