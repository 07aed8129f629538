"""Going on where a run stopped: which checkpoint, and whether it is this run's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from trainer.checkpoint.file import State
from trainer.checkpoint.head import UNNAMED, run_of
from trainer.checkpoint.identity import (
    Identity,
    differences,
    digest,
    identity,
    length_key,
    lengthened,
)
from trainer.checkpoint.store import Store, find
from trainer.config.models import RunConfig, SftConfig
from trainer.errors import ConfigError
from trainer.inputs import AnyInputs, data_files, planned_updates

NEWEST = "newest"
_KEPT_WITHOUT_SECTION = 2


@dataclass(frozen=True, slots=True)
class Resumed:
    """A checkpoint that this run may go on from. ``run`` is the id of the run that goes on, or
    nothing where it is to have a new one; ``remarks`` are for the journal."""

    path: Path
    update: int
    loop: State
    run: str
    remarks: list[str]


def checkpoint_folder(config: RunConfig) -> Path:
    """Where the run's checkpoints are: as configured, or beside its output."""
    section = config.checkpoint
    if section is not None and section.directory is not None:
        return section.directory
    output = config.output.path
    return output.with_name(f"{output.stem}.checkpoints")


def new_run_id() -> str:
    """A name that no other run has: 32 hexadecimal digits."""
    return uuid4().hex


def open_store(config: RunConfig, run_id: str) -> Store:
    """The checkpoints of the run ``run_id``."""
    section = config.checkpoint
    return Store(
        checkpoint_folder(config),
        keep=section.keep if section else _KEPT_WITHOUT_SECTION,
        every_steps=section.every_steps if section else None,
        run=run_id,
    )


def identity_of(config: RunConfig, inputs: AnyInputs) -> Callable[[], Identity]:
    """What makes the run the one it is. The data is looked at now, while it is what was read; the
    model, which takes a while, when the result is called. Both raise OSError."""
    files = {key: digest(path) for key, path in data_files(config).items()}
    return lambda: identity(inputs.params(config), model=inputs.file.digest(), files=files)


def resume(
    config: RunConfig, inputs: AnyInputs, place: Path | None, run: str | None = None
) -> Resumed | None:
    """The checkpoint at ``place`` (a file or a folder), or that of ``checkpoint.resume_from``; None
    where neither asks for one.

    ``run`` is the id of the run that is to go on, where the caller knows it (`UNNAMED`: one that is
    older than ids are). Of the folder at ``place`` only its own checkpoints are taken then; a
    file, or what the configuration names, may be another run's, which is told.

    Raises ConfigError when there is none, or when it belongs to a run that differs: the message
    lists in what.
    """
    wanted = place or (config.checkpoint.resume_from if config.checkpoint else None)
    if wanted is None:
        return None
    remarks: list[str] = []
    path, state = find(wanted, remarks.append, run if place is not None else None)
    now = identity_of(config, inputs)()
    if different := differences(state["identity"], now):
        lines = "\n".join(f"  {line}" for line in different)
        raise ConfigError(
            f"{path}: is a checkpoint of another run. Different are\n{lines}\nSet them back, or "
            f"start afresh without resuming."
        )
    planned, unit = planned_updates(config, inputs), length_key(now).partition(".")[2]
    if planned < state["update"]:
        raise ConfigError(
            f"{config.where(length_key(now))}: {path} is after update {state['update']} already. "
            f"Ask for at least as many updates{_in_epochs(config, planned)}."
        )
    if lengths := lengthened(state["identity"], now):
        before, after = lengths
        remarks.append(
            f"the run was planned with {before} {unit} and now has {after}: a learning rate that "
            f"follows a schedule takes the new one from here on"
        )
    keeps = _kept_id(path, state["identity"], now, run, remarks)
    return Resumed(path, state["update"], state["loop"], keeps, remarks)


def _kept_id(
    path: Path, saved: Identity, now: Identity, run: str | None, remarks: list[str]
) -> str:
    """The id that the run which goes on from ``path`` has: its own where it has one, else that of
    the checkpoint, unless it writes elsewhere and so becomes a second run beside the first."""
    theirs = run_of(path) or UNNAMED
    output = saved["params"]["output"]["path"]
    another = theirs != run if run else output != now["params"]["output"]["path"]
    if theirs and another:
        remarks.append(
            f"{path} was saved by another run with the same settings, whose output is {output}: "
            "this run goes on from it, and keeps checkpoints of its own from here on"
        )
    return run or ("" if another else theirs)


def _in_epochs(config: RunConfig, planned: int) -> str:
    """What a number of updates is in SFT, whose length is told in epochs."""
    if not isinstance(config, SftConfig):
        return ""
    return f" (training.epochs = {config.training.epochs} are {planned})"
