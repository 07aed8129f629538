"""Whether a run that has ended can go on, from where, and what to say where it cannot."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from app.jobs.queue import QueueError
from app.store.alive import HERE
from app.store.database import Store
from app.store.models import Run
from app.store.status import RESUMABLE
from trainer.checkpoint.head import by_age
from trainer.health.resolve import lookup

_NUMBER = re.compile(r"update-(\d+)")


@dataclass(frozen=True, slots=True)
class Resumption:
    """``label`` is that of the button, and ``words`` are a sentence: what it does, or why there is
    none."""

    possible: bool
    label: str = ""
    words: str = ""


def resumption(run: Run) -> Resumption:
    """What the disk has to say of it; looks only where ``run`` is one that may go on."""
    if run.status not in RESUMABLE:
        return Resumption(False)
    if run.host != HERE:
        return Resumption(
            False, words=f"It was made on {run.host}, and its files are there: resume it there."
        )
    folder = _checkpoint_folder(run)
    if found := _newest(folder, run.uuid):
        number = _NUMBER.fullmatch(found)
        name = f"the checkpoint of update {int(number[1])}" if number else f"its checkpoint {found}"
        return Resumption(True, "Resume", f"Goes on from {name}.")
    if run.completed == 0:
        return Resumption(True, "Start again", "Begins again: it had trained nothing yet.")
    return Resumption(
        False,
        words=f"It cannot go on from update {run.completed}: there is no checkpoint of it"
        f"{', and the ones in its folder are of another run' if _newest(folder) else ''}. "
        "Clone config starts it again as a new run, and leaves what this one has.",
    )


def refuse_what_cannot_go_on(store: Store, run_id: int) -> None:
    """Raises QueueError for a run that has ended and has nothing to go on from."""
    with store.read() as session:
        run = session.get(Run, run_id)
    if run is None:
        return  # whoever asks the queue hears of it, and of runs that have not ended
    found = resumption(run)
    if found.words and not found.possible:
        raise QueueError(f"Run {run_id} cannot be resumed. {found.words}")


def _checkpoint_folder(run: Run) -> Path | None:
    """As `trainer.resume.checkpoint_folder` has it, from what the store knows of the run."""
    if named := lookup(run.params, "checkpoint.directory"):
        return Path(named)
    output = Path(run.output)
    return output.with_name(f"{output.stem}.checkpoints") if output.name else None


def _newest(folder: Path | None, run: str | None = None) -> str:
    """The name, without its ending, of the newest checkpoint in ``folder``, or nothing; of ``run``,
    where that is told."""
    try:
        found = [] if folder is None else by_age(folder, run)
    except OSError:
        return ""
    return found[0].stem if found else ""
