"""``retrograd runs``: the runs of the store, without a browser."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from app.cli.errors import Debug, reported, say
from app.cli.runs_resume import resume

if TYPE_CHECKING:
    from app.store.database import Store

app = typer.Typer(help="See and manage the runs in the store.", no_args_is_help=True)

Number = Annotated[int, typer.Argument(metavar="ID", help="The run's number in the list.")]
Place = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="A file or a SQLAlchemy URL, in place of RETROGRAD_STORE or the user's own store.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Sorts = Literal["newest", "oldest", "name", "reward", "longest"]
Formats = Literal["csv", "jsonl", "records"]
app.command()(resume)


@app.callback()
def _group() -> None:
    return


@app.command("list")
def list_all(
    words: Annotated[
        list[str] | None,
        typer.Argument(help="Only runs whose name, model or algorithm holds these words."),
    ] = None,
    status: Annotated[
        str, typer.Option(help="Only these: running, finished, failed, or one status.")
    ] = "",
    sort: Annotated[Sorts, typer.Option(help="What comes first.")] = "newest",
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 30,
    as_json: Json = False,
    store: Place = None,
    debug: Debug = False,
) -> None:
    """List runs, the newest first."""
    with reported(debug), _opened(store) as opened:
        from rich.console import Console

        from app.store.queries.runs import list_runs
        from app.terminal.runs import print_list

        with opened.read() as session:
            page = list_runs(
                session, text=" ".join(words or ()), status=status, sort=sort, limit=limit
            )
        if as_json:
            _print_json([_plain(row) for row in page.rows])
        elif page.rows:
            print_list(page.rows, Console(highlight=False))
            if page.has_more:
                say(f"{page.total - len(page.rows)} more; --limit shows them.")
        elif words or status:
            say("No run is like that.")
        else:
            say(f"There are no runs in {opened.place} yet: `retrograd train` makes one.")


@app.command()
def show(run: Number, as_json: Json = False, store: Place = None, debug: Debug = False) -> None:
    """Show a run: its state, its last numbers beside what is healthy, and what is wrong."""
    with reported(debug), _opened(store) as opened:
        from rich.console import Console

        from app.store.queries.artifacts import artifacts_of
        from app.store.queries.metrics import last_values
        from app.store.queries.runs import get_run
        from app.terminal.runs import print_run

        with opened.read() as session:
            found = get_run(session, run)
            if found is None:
                raise _unknown(run, opened)
            values = last_values(session, run)
            files = artifacts_of(session, run)
        if as_json:
            columns = {c.name: getattr(found, c.name) for c in found.__table__.columns}
            metrics = {value.name: value.value for value in values}
            paths = [{"kind": f.kind, "path": f.path, "sha256": f.sha256} for f in files]
            _print_json(columns | {"metrics": metrics, "artifacts": paths})
        else:
            print_run(found, values, files, Console(highlight=False))


@app.command()
def stop(run: Number, store: Place = None, debug: Debug = False) -> None:
    """Ask a run to end after the update at hand, and to keep its adapter."""
    with reported(debug), _opened(store) as opened:
        from app.jobs.queue import ask

        typer.echo(ask(opened, run, "stop"))


@app.command()
def delete(
    run: Number,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    store: Place = None,
    debug: Debug = False,
) -> None:
    """Delete a run from the store. Files that a run of the terminal wrote stay; a run of the
    browser goes with its folder."""
    with reported(debug), _opened(store) as opened:
        from app.store.deletion import delete_run
        from app.store.queries.runs import get_run
        from app.text import counted, neutralise

        with opened.read() as session:
            found = get_run(session, run)
        if found is None:
            raise _unknown(run, opened)
        what = f"run {run} ({neutralise(found.name)}, {counted(found.completed, 'update')})"
        if found.source == "browser":
            what += f" and its folder {neutralise(found.folder)}"
        if not yes:
            typer.confirm(f"Delete {what}? This cannot be undone.", abort=True, err=True)
        delete_run(opened, run)
        say(f"Deleted {what}.")


@app.command()
def export(
    run: Number,
    form: Annotated[
        Formats,
        typer.Option(
            "--format",
            help="csv and jsonl: the metrics; records: every prompt, answer and update, in the "
            "shape of observe.jsonl.",
        ),
    ] = "csv",
    to: Annotated[
        Path | None, typer.Option(help="A file, in place of the terminal.", show_default=False)
    ] = None,
    store: Place = None,
    debug: Debug = False,
) -> None:
    """Write a run's metrics, or all of its answers, for other programs."""
    with reported(debug), _opened(store) as opened:
        from app.store import export as exports
        from app.store.queries.runs import get_run
        from trainer.errors import RetrogradError

        with opened.read() as session:
            if get_run(session, run) is None:
                raise _unknown(run, opened)
        make = {
            "csv": exports.metrics_csv,
            "jsonl": exports.metrics_jsonl,
            "records": exports.records_jsonl,
        }[form]
        if to is None:
            for line in make(opened, run):
                sys.stdout.buffer.write(line.encode())
            sys.stdout.flush()
            return
        try:
            with to.open("w", encoding="utf-8") as file:
                file.writelines(make(opened, run))
        except OSError as error:
            raise RetrogradError(f"{to}: cannot be written ({error.strerror}).") from error


@contextmanager
def _opened(url: str | None) -> Iterator[Store]:
    from app.store.database import Store
    from app.store.registry import mark_interrupted

    with closing(Store.open(url)) as store:
        mark_interrupted(store)
        yield store


def _unknown(run: int, store: Store) -> Exception:
    from app.store.errors import StoreError

    return StoreError(f"There is no run {run} in {store.place}; `retrograd runs list` shows them.")


def _plain(row: Any) -> dict[str, Any]:  # noqa: ANN401  any of the dataclasses of a query
    from dataclasses import asdict

    return asdict(row)


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))
