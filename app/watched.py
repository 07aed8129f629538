"""A run with the watchers that the command line gives it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from app.stop import StopOnSignal
from app.terminal import TerminalMonitor
from trainer.config import RunConfig
from trainer.monitor import CompositeMonitor, Event, JsonlMonitor, Monitor, Outcome


@dataclass(frozen=True, slots=True)
class Watched:
    outcome: Outcome
    exit_status: int


def run_watched(config: RunConfig, resume_from: Path | None = None) -> Watched:
    """Train, from a checkpoint where ``resume_from`` names one. The run is shown on stderr and,
    where ``[observe]`` names a folder, written to its file.

    Raises what ``trainer.run.run`` raises.
    """
    from trainer.run import run

    records = _records(config)
    with TerminalMonitor(observe_file=records.path if records else None) as terminal:

        def note(text: str) -> None:
            # The terminal may be gone, which is what SIGHUP tells: the wish to stop holds still.
            with suppress(OSError):
                terminal.event(Event("info", "stopping", text))

        with StopOnSignal(note) as stop:
            monitors: list[Monitor] = [terminal, stop]
            if records is not None:
                monitors.append(records)
            outcome = run(config, CompositeMonitor(monitors), resume_from=resume_from)
    return Watched(outcome, _exit_status(outcome, stop.exit_status))


def _records(config: RunConfig) -> JsonlMonitor | None:
    observe = config.observe
    if observe is None or observe.directory is None:
        return None
    return JsonlMonitor(observe.directory, observe.every, observe.max_text_chars)


def _exit_status(outcome: Outcome, signalled: int | None) -> int:
    if outcome.status == "failed":
        return 1
    if outcome.status == "stopped" and signalled is not None:
        return signalled
    return 0
