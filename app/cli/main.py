"""The command and its subcommands. Whatever is slow to import is imported where it is used."""

from __future__ import annotations

import inspect as inspect_module
import os
import sys
from contextlib import suppress
from importlib.metadata import version
from typing import Annotated

import typer

from app.cli import (
    bench,
    chat,
    check,
    demo,
    fetch,
    inspect,
    judge,
    merge,
    reward,
    runs,
    serve,
    serve_model,
    train,
)

app = typer.Typer(
    name="retrograd",
    help="Teach a GGUF language model by reward: reinforcement learning of LoRA adapters.",
    epilog="Start with `retrograd demo`: it trains a tiny model that comes with retrograd.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("train")(train.train)
app.command("serve")(serve.serve)
app.command("serve-model")(serve_model.serve_model)
app.command("check")(check.check)
app.command("chat")(chat.chat)
app.command("bench")(bench.bench)
app.command("inspect")(inspect.inspect)
app.command("merge")(merge.merge)
app.command("fetch")(fetch.fetch)
app.command("demo")(demo.demo)
app.add_typer(reward.app, name="reward")
app.add_typer(judge.app, name="judge")
app.add_typer(runs.app, name="runs")


def _join_lines(group: typer.Typer) -> None:
    """Give each command its docstring with every paragraph as one line: what shows it breaks lines
    where the terminal ends, and would keep those of the source beside its own."""
    for command in group.registered_commands:
        words = command.help or inspect_module.getdoc(command.callback) or ""
        command.help = "\n\n".join(" ".join(part.split()) for part in words.split("\n\n"))
    for inner in group.registered_groups:
        if inner.typer_instance is not None:
            _join_lines(inner.typer_instance)


_join_lines(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"retrograd {version('retrograd')}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    return


def main() -> None:
    try:
        app(prog_name="retrograd")
    finally:
        _give_up_on_closed_streams()


def _give_up_on_closed_streams() -> None:
    """What a terminal that has gone did not take would be tried again when Python ends, and the
    exit status would be 120 in place of the command's own."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with suppress(OSError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)
