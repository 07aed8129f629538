"""``retrograd check``"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from app.cli.errors import Debug, reported
from app.cli.train import Config, Model
from app.rows import print_rows
from app.text import neutralise

if TYPE_CHECKING:
    from trainer.check import CheckReport

_MARKS = {"ok": ("ok", "green"), "warning": ("warning", "yellow"), "error": ("error", "bold red")}


def check(
    config: Config,
    model: Model = None,
    sample: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Also let the base model answer N prompts (GRPO: with a group each), and score "
            "that.",
        ),
    ] = 0,
    debug: Debug = False,
) -> None:
    """Say whether the run that CONFIG describes can work, before it starts.

    The exit status is 2 where something would stop the run, else 0.
    """
    with reported(debug):
        from trainer.config import Overrides, load_config, refuse_unavailable

        loaded = load_config(config, Overrides(model=model))
        refuse_unavailable(loaded)

        # After the configuration is known to be good: this import takes seconds.
        from trainer.check import check as run_check

        report = run_check(loaded, sample=sample)
        _print(report)
        if _count(report, "error"):
            raise typer.Exit(2)


def _print(report: CheckReport) -> None:
    rows = []
    for finding in report.findings:
        mark, style = _MARKS[finding.level]
        detail = neutralise(finding.detail, keep_newlines=True)
        rows.append((Text(mark, style), Text(neutralise(finding.title), "bold"), Text(detail)))
    print_rows(rows)
    errors, warnings = (_count(report, level) for level in ("error", "warning"))
    verdict = "This run cannot work as it is" if errors else "This run can start"
    verdict = f"{verdict}: {_counted(errors, 'error')}, {_counted(warnings, 'warning')}."
    Console(highlight=False).print(Text(verdict, "bold"), soft_wrap=True)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def _count(report: CheckReport, level: str) -> int:
    return sum(finding.level == level for finding in report.findings)
