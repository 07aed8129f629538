"""``retrograd runs compare``"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.errors import Debug, reported
from app.cli.runs_common import MOST, Json, Place, find_named, opened_store

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from app.jobs.differences import Difference
    from app.store.models import Run
    from app.terminal.comparison import ComparedRun

_OTHERS = (
    "completions/length_mean",
    "completions/truncation_fraction",
    "policy/approx_kl",
    "optimizer/grad_norm",
    "timing/update_seconds",
)


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            help="Runs by their numbers in the list, or by names that no other run has.",
        ),
    ],
    metric: Annotated[
        list[str] | None,
        typer.Option(help="Another metric to show; may be given again.", show_default=False),
    ] = None,
    last: Annotated[
        int,
        typer.Option(
            min=1, max=MOST, help="Over how many of the newest updates the mean is taken."
        ),
    ] = 10,
    as_json: Json = False,
    store: Place = None,
    debug: Debug = False,
) -> None:
    """Hold runs side by side: what they were told differently, and what came of it.

    Differences are against the run that is named first.
    """
    with reported(debug):
        from app.jobs.differences import differences
        from trainer.errors import ConfigError

        words = list(dict.fromkeys(runs))
        with opened_store(store) as opened, opened.read() as session:
            found = {run.id: run for run in (find_named(session, word, opened) for word in words)}
            if len(found) < 2:
                raise ConfigError(
                    "Name two runs or more, by their numbers or names; `retrograd runs list` shows "
                    "them."
                )
            chosen = list(found.values())
            names = _metrics(chosen, metric or [])
            compared = [_compared(session, run, names, last) for run in chosen]
            told = differences([(run.algorithm, run.params) for run in chosen])
        for name in metric or []:
            if not any(name in run.courses for run in compared):
                raise ConfigError(f"None of these runs has a metric {name!r}.")
        if as_json:
            typer.echo(json.dumps(_plain(compared, told), indent=2, ensure_ascii=False))
            return
        from rich.console import Console

        from app.terminal.comparison import print_comparison

        shown = [(difference.key, difference.values) for difference in told]
        print_comparison(compared, shown, names, last, Console(highlight=False))


def _metrics(runs: Sequence[Run], asked: Sequence[str]) -> list[str]:
    """What is shown: the reward or loss, the same on held-out prompts, some others."""
    from trainer.health.headline import headline_of

    mains = [headline_of(run.algorithm) for run in runs]
    names = [*(main.name for main in mains), *(main.held_out for main in mains)]
    return list(dict.fromkeys([*names, *asked, *_OTHERS]))


def _compared(session: Session, run: Run, names: Sequence[str], last: int) -> ComparedRun:
    from dataclasses import replace

    from app.store.queries.compare import course_of, first_at, tokens_of
    from app.store.status import seconds_taken
    from app.terminal.comparison import ComparedRun

    courses = {name: course_of(session, run.id, name, last) for name in names}
    compared = ComparedRun(
        id=run.id,
        name=run.name,
        algorithm=run.algorithm,
        status=run.status,
        completed=run.completed,
        planned=run.planned,
        seconds=seconds_taken(run, time.time()),
        tokens=tokens_of(session, run.id),
        sparkline=run.sparkline,
        courses={name: course for name, course in courses.items() if course is not None},
        best_at={},
    )
    bests = {name: compared.best(name) for name in names}
    at = {n: first_at(session, run.id, n, best) for n, best in bests.items() if best is not None}
    return replace(compared, best_at=at)


def _plain(runs: Sequence[ComparedRun], told: Sequence[Difference]) -> dict[str, object]:
    from dataclasses import asdict

    from app.jobs.differences import ABSENT

    def value(written: str) -> object:
        if written == ABSENT:
            return None
        try:
            return json.loads(written)
        except ValueError:  # several lines, which are told as they are
            return written

    return {
        "runs": [
            {key: each for key, each in asdict(run).items() if key not in ("courses", "best_at")}
            | {
                "metrics": {
                    name: asdict(course)
                    | {"best": run.best(name), "best_update": run.best_at.get(name)}
                    for name, course in run.courses.items()
                }
            }
            for run in runs
        ],
        "differences": [
            {
                "key": d.key,
                "values": dict(zip((r.id for r in runs), map(value, d.values), strict=True)),
            }
            for d in told
        ],
    }
