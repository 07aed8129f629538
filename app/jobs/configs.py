"""The configuration that a run of the store was, or will be, started with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from app.jobs.accepted import refuse_what_was_not_accepted
from app.jobs.draft import placed_config
from app.jobs.workspace import RECORD
from app.overrides import with_seed
from app.store.models import Run
from trainer.checkpoint.head import by_age
from trainer.config import Overrides, RunConfig, load_config, refuse_unavailable
from trainer.errors import ConfigError
from trainer.health.resolve import lookup


def config_of(run: Run) -> RunConfig:
    """Read again, with the files and options that it was started with. Raises ConfigError,
    also where they are not what was accepted."""
    folder = Path(run.folder)
    if not Path(run.config_path).is_file():
        raise ConfigError(
            f"The configuration of run {run.id}, {run.config_path}, is not there any more. Put it "
            "back, or start a new run with Clone config."
        )
    of_browser = run.source == "browser" and (folder / RECORD).is_file()
    if of_browser:
        refuse_what_was_not_accepted(folder, resumes=run.started_at is not None)
    config = placed_config(folder) if of_browser else _of_terminal(run)
    refuse_unavailable(config)
    return config


def resume_place(config: RunConfig, run: Run) -> Path | None:
    """The folder of the run's checkpoints, or none where it holds no checkpoint of it yet."""
    from trainer.resume import checkpoint_folder  # loads torch

    folder = checkpoint_folder(config)
    return folder if by_age(folder, run.uuid) else None


def _of_terminal(run: Run) -> RunConfig:
    """With what the command line may have set in place of the file."""
    params: dict[str, Any] = run.params
    model, output = lookup(params, "model.path"), run.output
    overrides = Overrides(
        model=Path(model) if model else None,
        output=Path(output) if output else None,
        name=run.name or None,
    )
    config = load_config(Path(run.config_path), overrides)
    seed = lookup(params, f"{config.run.algorithm}.sampling.seed")
    return config if seed is None else with_seed(config, int(seed))
