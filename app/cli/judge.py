"""``retrograd judge test``"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.errors import Debug, reported
from app.cli.train import Config
from app.text import counted, neutralise, one_line

if TYPE_CHECKING:
    from trainer.config.judge import CommandJudge, RulerJudge
    from trainer.judge.judge import Judgement, Ruling
    from trainer.judge.labelled import LabelledGroup
    from trainer.judge.questions import Exchange

app = typer.Typer(help="Try what judges the answers.", no_args_is_help=True)

_TEXT_CELLS = 60


@app.callback()
def _group() -> None:
    return


@app.command("test")
def try_out(
    config: Config,
    answers: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="JSONL: lines of a prompt file that also hold `answers`, each a text, or an "
            "object with `completion` and `label`, a number that is larger for a better answer.",
        ),
    ],
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many lines of FILE to use.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Leave the cache of CONFIG alone, and ask everything.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Let the judge of CONFIG rank the answers in FILE, without training.

    Every request and its reply is shown, then the verdicts, and how far they agree with the labels.
    The exit status is 1 where a group got no verdict.
    """
    with reported(debug):
        from trainer.config import GrpoConfig, load_config
        from trainer.errors import ConfigError
        from trainer.judge.judge import open_judge
        from trainer.judge.labelled import read_labelled

        loaded = load_config(config)
        if not isinstance(loaded, GrpoConfig) or loaded.grpo.judge is None:
            raise ConfigError(f"{config} describes no judge: add the section [grpo.judge].")
        groups = read_labelled(answers)[:limit]
        judge = open_judge(
            _without_cache(loaded.grpo.judge) if fresh else loaded.grpo.judge,
            folder=loaded.folder,
            seed=loaded.grpo.sampling.seed,
            listener=_show,
            on_note=lambda note: typer.echo(neutralise(note)),
        )
        judgement = judge.judge([group.to_judge() for group in groups])
        for group, ruling in zip(groups, judgement.rulings, strict=True):
            _list(group, ruling)
        _summarise(groups, judgement)
        if any(ruling.failure is not None for ruling in judgement.rulings):
            raise typer.Exit(1)


def _without_cache(section: RulerJudge | CommandJudge) -> RulerJudge | CommandJudge:
    if section.type == "command":
        return section
    return section.model_copy(update={"cache_path": None})


def _show(exchange: Exchange) -> None:
    """One request and what came of it, each line marked with its direction."""
    told = "from the cache" if exchange.cached else f"{exchange.seconds:.1f} s"
    typer.echo(f"\n{exchange.label} ({told})")
    _mark("→", exchange.sent)
    if exchange.received is not None:
        _mark("←", exchange.received)
    if exchange.problem is not None:
        _mark("!", exchange.problem)


def _mark(sign: str, text: str) -> None:
    for line in neutralise(text, keep_newlines=True).split("\n"):
        typer.echo(f"{sign} {line}".rstrip())


def _list(group: LabelledGroup, ruling: Ruling) -> None:
    question = one_line(group.prompt.question, _TEXT_CELLS)
    typer.echo(f"\nLine {group.prompt.line}: {question}")
    if ruling.failure is not None:
        typer.echo(f"  no verdict: {neutralise(ruling.failure.reason)}")
        return
    typer.echo("  verdict  label  answer")
    rows = zip(ruling.verdicts, group.labels, group.answers, strict=True)
    for verdict, label, answer in sorted(rows, key=lambda row: -row[0].score):
        shown = "-" if label is None else f"{label:g}"
        text = one_line(answer, _TEXT_CELLS) or "(an empty answer)"
        typer.echo(f"  {verdict.score:7.3f}  {shown:>5}  {text}")
        if verdict.explanation:
            typer.echo(f"  {'':14}  {one_line(verdict.explanation, 2 * _TEXT_CELLS)}")


def _summarise(groups: Sequence[LabelledGroup], judgement: Judgement) -> None:
    typer.echo()
    for name, value in judgement.metrics.items():
        typer.echo(f"{name} = {value:g}")
    agreements = [
        (group.prompt.line, tau)
        for group, ruling in zip(groups, judgement.rulings, strict=True)
        if ruling.failure is None
        and (tau := group.agreement([v.score for v in ruling.verdicts])) is not None
    ]
    if not agreements:
        typer.echo("No group has different labels and different verdicts, so none can agree.")
        return
    taus = [tau for _, tau in agreements]
    line, worst = min(agreements, key=lambda pair: pair[1])
    typer.echo(
        f"Agreement with the labels (Kendall's tau, from -1 to 1): {fmean(taus):.2f} in the mean "
        f"of {counted(len(taus), 'group')}; lowest {worst:.2f}, on line {line}."
    )
