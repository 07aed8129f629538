"""``retrograd runs resume``"""

from __future__ import annotations

import shlex
from contextlib import closing
from typing import Annotated

import typer

from app.cli.errors import Debug, reported, say
from app.cli.runs_common import Number


def resume(
    run: Number,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="A file or a SQLAlchemy URL, in place of RETROGRAD_STORE or the user's own store.",
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Go on with a run that was stopped, failed or was interrupted, in this terminal.

    It goes on from its newest checkpoint, with the configuration, the files and the options that it
    was started with. One that has trained nothing yet begins again; one that has, and left no
    checkpoint, cannot go on: start a new run with its configuration.
    """
    with reported(debug):
        from app.jobs.queue import take
        from app.jobs.resumption import refuse_what_cannot_go_on
        from app.jobs.worker import make
        from app.store.database import Store
        from app.store.registry import mark_interrupted

        with closing(Store.open(store)) as opened:
            mark_interrupted(opened)
            refuse_what_cannot_go_on(opened, run)
            take(opened, run)
            watched = make(opened, run, resume=True, again=_again(run, store))
            if watched.outcome.status == "failed":
                say(watched.outcome.message)
            raise typer.Exit(watched.exit_status)


def _again(run: int, store: str | None) -> str:
    words = ["retrograd", "runs", "resume", str(run)]
    return shlex.join([*words, "--store", store] if store is not None else words)
