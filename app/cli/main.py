"""The command and its subcommands. Whatever is slow to import is imported where it is used."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from app.cli import check, demo, fetch, inspect, judge, reward, runs, serve, train

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
app.command("check")(check.check)
app.command("inspect")(inspect.inspect)
app.command("fetch")(fetch.fetch)
app.command("demo")(demo.demo)
app.add_typer(reward.app, name="reward")
app.add_typer(judge.app, name="judge")
app.add_typer(runs.app, name="runs")


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
    app(prog_name="retrograd")
