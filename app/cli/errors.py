"""How a command ends when something goes wrong: a message and a status, no traceback."""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated

import typer

from app.interrupt import Signalled, ended_by_signals, interrupts_that_last
from app.text import neutralise
from trainer.errors import RetrogradError

INTERRUPTED = 130
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Debug = Annotated[
    bool, typer.Option("--debug", help="On an error, show the traceback beside the message.")
]


@contextmanager
def reported(debug: bool) -> Iterator[None]:
    """Ends the command with the message and the exit status that an error stands for."""
    try:
        with interrupts_that_last(), ended_by_signals():
            yield
    except RetrogradError as error:
        _say(str(error), debug)
        raise typer.Exit(error.exit_status) from error
    except Signalled as signalled:
        _say("Stopped at once.", debug)
        raise typer.Exit(signalled.exit_status) from signalled
    except KeyboardInterrupt as interrupt:
        _say("Stopped.", debug)
        raise typer.Exit(INTERRUPTED) from interrupt
    except (typer.Exit, typer.Abort, BrokenPipeError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _NO_ROOM and error.filename is None:
            # Files are written where an error names them; what is left is the command's own output.
            _say(f"What it prints could not be written ({error.strerror}).", debug)
            raise typer.Exit(1) from error
        _say(
            f"retrograd failed in a way it does not know ({type(error).__name__}: {error}). This "
            "is a fault of retrograd; the same command with --debug shows where.",
            debug,
        )
        raise typer.Exit(1) from error


def say(message: str) -> None:
    """Write to stderr, if it is still there: the exit status tells the rest."""
    from app.rows import prose  # not where nothing is said: it takes a while to load

    with suppress(OSError):
        typer.echo(prose(neutralise(message, keep_newlines=True), sys.stderr), err=True)


def _say(message: str, debug: bool) -> None:
    if debug:
        with suppress(OSError):
            typer.echo(traceback.format_exc(), err=True)
    say(message)
