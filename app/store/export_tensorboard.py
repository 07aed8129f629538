"""A stored run as an event file, for TensorBoard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

from app.store.database import Store
from app.store.export import each_update
from app.store.models import Run, Update
from app.store.queries.answers import Filters, all_matching
from app.store.queries.trajectories import AnswerRow, Kind, prompts_of
from trainer.health.headline import headline_of
from trainer.monitor.eventfile import (
    PATTERN,
    EventFile,
    SampledUpdates,
    configuration,
    hyperparameters,
    samples,
    scalars,
)
from trainer.monitor.tensorboard import folder_name

OWNER = "export.json"
"""The file in a folder that says which run was exported into it."""


def write_event_file(store: Store, run_id: int, directory: Path) -> Path:
    """Write the run ``run_id``, which is there, into a folder of its own in ``directory``, where it
    takes the place of what was exported of it before; that folder. Superseded rows are left out.

    Raises OSError, and then leaves what was there before.
    """
    with store.read() as session:
        run = session.get_one(Run, run_id)
    folder = _folder_for(directory, run)
    earlier = list(folder.glob(PATTERN))
    file = EventFile(folder, first=0)
    try:
        _write(store, run, file)
        file.close()
    except BaseException:
        file.abandon()
        file.path.unlink(missing_ok=True)
        raise
    for path in earlier:
        path.unlink(missing_ok=True)
    return folder


def _folder_for(directory: Path, run: Run) -> Path:
    """The folder that has the run already, or a new one: a run of another store may have the same
    number and name."""
    name, owner = f"run-{run.id}-{folder_name(run.name)}", {"run": run.uuid or run.created_at}
    for number in count(1):
        folder = directory / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            with suppress(OSError, ValueError):
                if json.loads((folder / OWNER).read_text(encoding="utf-8")) == owner:
                    return folder
            if not folder.is_dir() and number == 1:
                raise
        else:
            (folder / OWNER).write_text(json.dumps(owner), encoding="utf-8")
            return folder
    raise AssertionError("numbers do not end")


def _write(store: Store, run: Run, file: EventFile) -> None:
    began = run.started_at or run.created_at
    main = headline_of(run.algorithm)
    begin, start, complete = hyperparameters(run.params, [main.name, main.held_out])
    for summary in (configuration(run.model, run.facts, run.params), begin, start):
        file.write(0, began, summary)
    sampled, at = SampledUpdates(run.planned), began
    for update, values in each_update(store, run.id):
        at = update.at
        file.write(update.update, at, scalars(values))
        if update.kind == "evaluation":
            _sample(store, run.id, update, file)
        elif sampled.is_due(update.update) and _sample(store, run.id, update, file):
            sampled.kept(update.update)
    if run.status == "completed":
        file.write(run.completed, at, complete)


def _sample(store: Store, run_id: int, update: Update, file: EventFile) -> bool:
    """Whether the update has answers whose texts were kept."""
    kind: Kind = "evaluation" if update.kind == "evaluation" else "train"
    found = list(_answers(store, run_id, kind, update.update))
    if found:
        tag = "eval/answers" if kind == "evaluation" else "answers"
        file.write(update.update, update.at, samples(tag, found))
    return bool(found)


def _answers(
    store: Store, run_id: int, kind: Kind, update: int
) -> Iterator[tuple[str, str, float]]:
    for rows in all_matching(store, run_id, kind, Filters(), update):
        yield from _asked(store, [row for row in rows if row.text is not None])


def _asked(store: Store, rows: list[AnswerRow]) -> Iterator[tuple[str, str, float]]:
    """As `samples` takes them."""
    with store.read() as session:
        prompts = prompts_of(session, {row.prompt_id for row in rows})
    for row in rows:
        yield prompts[row.prompt_id].question, row.text or "", row.reward
