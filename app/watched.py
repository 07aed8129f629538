"""A run with the watchers that the command line gives it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from app.stop import StopOnSignal
from app.store.database import Store
from app.store.errors import StoreError
from app.store.marks import marked_as
from app.store.monitor import StoreMonitor
from app.store.registry import register
from app.terminal import TerminalMonitor
from app.terminal.summary import Leads
from trainer.config import RunConfig
from trainer.monitor import CompositeMonitor, Event, JsonlMonitor, Monitor, Outcome, RunInfo

if TYPE_CHECKING:
    from trainer.monitor.tensorboard import TensorBoardMonitor

NO_STORE = "none"


@dataclass(frozen=True, slots=True)
class Watched:
    outcome: Outcome
    exit_status: int


def run_watched(
    config: RunConfig, resume_from: Path | None = None, store: str | None = None, again: str = ""
) -> Watched:
    """Train, from a checkpoint where ``resume_from`` names one. The run is shown on stderr, kept in
    the store (the user's own where ``store`` names no other; ``none`` for none) and, where
    ``[observe]`` and ``[metrics]`` name folders, written to files in them. ``again`` is the command
    that goes on with it.

    Raises StoreError where the store cannot be opened, and what ``trainer.run.run`` raises.
    """
    with opened(store) as kept:
        if kept is None:
            return train_watched(config, resume_from, again=again)
        with ExitStack() as marks:
            kept_by = partial(_kept_in, kept, config, marks)
            return train_watched(config, resume_from, kept_by, again=again)


def train_watched(
    config: RunConfig,
    resume_from: Path | None = None,
    kept_by: Callable[[Callable[[str], None]], Monitor] | None = None,
    *,
    again: str = "",
    run_id: str | None = None,
) -> Watched:
    """`run_watched` with the store's monitor as ``kept_by`` makes it, from what takes a line for
    the person who waits. ``run_id`` is the one of ``trainer.run.run``."""
    from trainer.run import run

    records = _records(config)
    observe_file = records.path if records else None
    board: TensorBoardMonitor | None = None

    def leads() -> Leads:
        return Leads(observe_file, board.folder if board else None, again)

    with TerminalMonitor(leads=leads) as terminal:

        def note(code: str, text: str) -> None:
            # The terminal may be gone, which is what SIGHUP tells: the wish to stop holds still.
            with suppress(OSError):
                terminal.event(Event("warning" if code == "store" else "info", code, text))

        kept: Monitor | None = None

        def stopping(text: str) -> None:
            note("stopping", text)
            if kept is not None:
                kept.event(Event("info", "stop_asked", text.partition(" Press ")[0]))

        with StopOnSignal(stopping) as stop:
            # The records are whole when the store takes their digest, and what the store has to
            # say comes before the terminal's last word.
            board = _board(config, partial(note, "tensorboard"))
            monitors: list[Monitor] = [m for m in (records, board) if m is not None]
            if kept_by is not None:
                kept = kept_by(partial(note, "store"))
                monitors.append(kept)
            monitors += [terminal, stop]
            watching = CompositeMonitor(monitors)
            outcome = run(config, watching, resume_from=resume_from, run_id=run_id)
    return Watched(outcome, _exit_status(outcome, stop.exit_status))


@contextmanager
def opened(store: str | None) -> Iterator[Store | None]:
    """The store for a run; None where it is to have none. Raises StoreError."""
    if store == NO_STORE:
        yield None
        return
    try:
        kept = Store.open(store)
    except StoreError as error:
        raise StoreError(
            f"{error} The run was not begun; --store none trains without a store."
        ) from error
    with closing(kept):
        yield kept


def _kept_in(
    store: Store,
    config: RunConfig,
    marks: ExitStack,
    note: Callable[[str], None],
) -> StoreMonitor:
    # Entered when it starts: what is refused before that has not been a run.
    def enter(info: RunInfo) -> int:
        run_id = register(store, config, info)
        marks.enter_context(marked_as(store, run_id))
        return run_id

    return StoreMonitor(store, enter, note)


def _records(config: RunConfig) -> JsonlMonitor | None:
    observe = config.observe
    if observe is None or observe.directory is None:
        return None
    return JsonlMonitor(observe.directory, observe.every, observe.max_text_chars)


def _board(config: RunConfig, tell: Callable[[str], None]) -> TensorBoardMonitor | None:
    if config.metrics.tensorboard_dir is None:
        return None
    from trainer.monitor.tensorboard import TensorBoardMonitor  # loads torch

    return TensorBoardMonitor(config.metrics.tensorboard_dir, tell)


def _exit_status(outcome: Outcome, signalled: int | None) -> int:
    if outcome.status == "failed":
        return 1
    if outcome.status == "stopped" and signalled is not None:
        return signalled
    return 0
