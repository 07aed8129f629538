"""``retrograd train``"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from app.cli.errors import Debug, reported, say

Config = Annotated[Path, typer.Argument(help="The TOML file that describes the run.")]
Model = Annotated[
    Path | None, typer.Option(help="Base model (GGUF), in place of the path under \\[model].")
]
Seed = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help="In place of CONFIG's seed of sampling."),
]

StoreOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL|none",
        help="Where the run is kept for the dashboard and `retrograd runs`: a file or a SQLAlchemy "
        "URL, in place of RETROGRAD_STORE or the user's own store; none keeps it nowhere.",
    ),
]


def train(
    config: Config,
    checkpoint: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CHECKPOINT]",
            help="With --resume: a checkpoint, or a folder of them, other than the run's own.",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest checkpoint of this run.")
    ] = False,
    model: Model = None,
    output: Annotated[
        Path | None, typer.Option(help="Where the result goes, in place of \\[output].")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The run's name, in place of \\[run].")] = None,
    seed: Seed = None,
    store: StoreOption = None,
    debug: Debug = False,
) -> None:
    """Train an adapter as CONFIG says.

    The first Ctrl-C (or SIGTERM, or SIGHUP when the terminal closes) ends the run at once while
    answers are sampled, and otherwise after the update at hand; the second one ends it at once,
    whatever it does. Either way the adapter of the last finished update is written.
    """
    with reported(debug):
        if sys.stderr.isatty():  # what is imported now takes seconds
            say(f"Reading {config} …")
        from app.overrides import with_seed
        from app.watched import run_watched
        from trainer.config import Overrides, load_config, refuse_unavailable
        from trainer.errors import ConfigError

        loaded = load_config(config, Overrides(model=model, output=output, name=name))
        if seed is not None:
            loaded = with_seed(loaded, seed)
        refuse_unavailable(loaded)
        if checkpoint is not None and not resume:
            raise ConfigError(f"{checkpoint}: write --resume before it, to go on from there.")
        place = checkpoint
        if resume and place is None:
            from trainer.resume import checkpoint_folder  # loads torch

            place = checkpoint_folder(loaded)
        if place is None and loaded.output.path.is_file():
            from app.terminal.summary import shown_path

            there = shown_path(loaded.output.path)
            say(f"{there} is there already: what this run trains takes its place.")
        options = {"model": model, "output": output, "name": name, "seed": seed, "store": store}
        watched = run_watched(loaded, place, store, _again(config, options))
        if watched.outcome.status == "failed":
            say(watched.outcome.message)
        raise typer.Exit(watched.exit_status)


def _again(config: Path, options: Mapping[str, object]) -> str:
    """The command that goes on with this run, as it is typed in the same folder."""
    given = [
        word
        for name, value in options.items()
        if value is not None
        for word in (f"--{name}", str(value))
    ]
    return shlex.join(["retrograd", "train", str(config), "--resume", *given])
