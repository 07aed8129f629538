"""``retrograd demo``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.cli.errors import Debug, reported, say
from app.cli.train import Seed


def demo(
    to: Annotated[
        Path, typer.Option(help="The folder for the example's files and the result.")
    ] = Path("retrograd-demo"),
    seed: Seed = None,
    debug: Debug = False,
) -> None:
    """Train the tiny model that comes with retrograd, for real, in a minute or two."""
    with reported(debug):
        from app.demo import next_steps, prepare, run_demo

        prepared = prepare(to)
        for line in prepared.remarks:
            say(line)
        watched = run_demo(prepared, seed)
        if watched.outcome.status == "completed":
            typer.echo(next_steps(prepared))
        elif watched.outcome.status == "failed":
            say(watched.outcome.message)
        raise typer.Exit(watched.exit_status)
