"""Where the files lie that come with retrograd and are not Python code."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from trainer.errors import RetrogradError

Bundle = Literal["templates", "static", "migrations", "examples"]


def bundled(name: Bundle) -> Path:
    """The folder ``name``: inside the package where retrograd was installed from a wheel, beside
    it in a checkout. Raises ``RetrogradError`` where neither is there."""
    package = Path(__file__).parent
    candidates = (package / "_bundled" / name, package.parent / name)
    for folder in candidates:
        if folder.is_dir():
            return folder
    raise RetrogradError(
        f"The folder {name} that comes with retrograd is missing; looked for "
        f"{candidates[0]} and {candidates[1]}. Install retrograd again."
    )
