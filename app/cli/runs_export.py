"""``retrograd runs export``"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from app.cli.errors import Debug, reported, say
from app.cli.replacing import Force, refuse_to_replace
from app.cli.runs_common import Named, Place, number_of, opened_store

if TYPE_CHECKING:
    from app.store.exports import Export

What = Literal["metrics", "answers", "events", "records"]
Form = Literal["csv", "jsonl", "tensorboard"]


def export(
    run: Named,
    what: Annotated[
        What | None,
        typer.Option(
            metavar="WHAT",
            help="metrics (unless another is named), answers: all of them, events: the journal's, "
            "or records: prompts, answers and updates in the shape of observe.jsonl.",
            show_default=False,
        ),
    ] = None,
    form: Annotated[
        Form | None,
        typer.Option(
            "--format",
            metavar="FORM",
            help="csv (unless another is named), jsonl, or tensorboard: the metrics, configuration "
            "and some answers as an event file.",
            show_default=False,
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            help="A file, in place of the terminal; for TensorBoard a folder, in which the run "
            "gets one of its own.",
            show_default=False,
        ),
    ] = None,
    force: Force = False,
    store: Place = None,
    debug: Debug = False,
) -> None:
    """Write a run for other programs: its metrics, answers or events."""
    with reported(debug):
        from trainer.errors import RetrogradError

        asked = None if form == "tensorboard" else _export(what or "metrics", form)
        folder = _folder(what, to) if asked is None else None
        if asked is not None and to is not None:
            refuse_to_replace(to, "--to", force=force)
        with opened_store(store) as opened:
            found = number_of(opened, run)
            try:
                if folder is not None:
                    from app.store.export_tensorboard import write_event_file

                    say(f"TensorBoard reads the run in {write_event_file(opened, found, folder)}.")
                elif asked is not None:
                    _write(asked.lines(opened, found), to)
            except BrokenPipeError:
                raise
            except OSError as error:
                where = "The standard output" if to is None else f"{to}:"
                raise RetrogradError(f"{where} cannot be written ({error.strerror}).") from error


def _export(what: What, form: Form | None) -> Export:
    from app.store.exports import EXPORTS
    from trainer.errors import ConfigError

    found = EXPORTS.get(f"{what}.{form or ('jsonl' if what == 'records' else 'csv')}")
    if found is None:
        raise ConfigError(f"{what} cannot be written as {form}: leave --format out.")
    return found


def _folder(what: What | None, to: Path | None) -> Path:
    from trainer.errors import ConfigError

    if what is not None:
        raise ConfigError(
            f"An event file has the metrics, the configuration and some answers: leave out --what "
            f"{what}, or write --format csv or jsonl."
        )
    if to is None:
        raise ConfigError("Name a folder for the event file with --to.")
    return to


def _write(lines: Iterator[str], to: Path | None) -> None:
    """To the terminal, or as a file that is there once it is whole. Raises OSError."""
    if to is None:
        for line in lines:
            sys.stdout.buffer.write(line.encode())
        sys.stdout.flush()
        return
    if to.exists() and not to.is_file():  # a pipe, or a device
        _fill(to, lines)
        return
    from trainer.gguf.partial import written_whole

    with written_whole(to) as partial:
        _fill(partial, lines)


def _fill(path: Path, lines: Iterator[str]) -> None:
    # With their own ends, on every system.
    with path.open("w", encoding="utf-8", newline="") as file:
        file.writelines(lines)
