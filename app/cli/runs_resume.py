"""``retrograd runs resume``"""

from __future__ import annotations

import shlex

import typer

from app.cli.errors import Debug, reported, say
from app.cli.runs_common import Named, Place, number_of, opened_store


def resume(
    run: Named,
    store: Place = None,
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

        with opened_store(store) as opened:
            number = number_of(opened, run)
            refuse_what_cannot_go_on(opened, number)
            take(opened, number)
            watched = make(opened, number, resume=True, again=_again(number, store))
            if watched.outcome.status == "failed":
                say(watched.outcome.message)
            raise typer.Exit(watched.exit_status)


def _again(run: int, store: str | None) -> str:
    words = ["retrograd", "runs", "resume", str(run)]
    return shlex.join([*words, "--store", store] if store is not None else words)
