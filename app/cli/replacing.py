"""Files that a command writes where the user says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Force = Annotated[
    bool,
    typer.Option("--force", help="Replace the file that is there already.", show_default=False),
]


def refuse_to_replace(path: Path, option: str, *, force: bool) -> None:
    """Raises ConfigError where ``path``, which ``option`` names, is a file that is there: it may be
    a model, or a configuration. A pipe or a device is written to."""
    from trainer.errors import ConfigError

    if path.is_file() and not force:
        raise ConfigError(f"{option} {path}: exists. Name another file, or add --force.")
