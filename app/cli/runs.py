"""``retrograd runs``: the runs of the store, without a browser."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import typer

from app.cli.errors import Debug, reported, say
from app.cli.runs_common import MOST, Json, Named, Place, find_named, number_of, opened_store
from app.cli.runs_compare import compare
from app.cli.runs_export import export
from app.cli.runs_resume import resume

app = typer.Typer(help="See and manage the runs in the store.", no_args_is_help=True)

Sorts = Literal["newest", "oldest", "name", "reward", "longest"]
app.command()(resume)
app.command()(export)
app.command()(compare)


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
    limit: Annotated[int, typer.Option(min=1, max=MOST, help="How many at most.")] = 30,
    as_json: Json = False,
    store: Place = None,
    debug: Debug = False,
) -> None:
    """List runs, the newest first."""
    with reported(debug), opened_store(store) as opened:
        from rich.console import Console

        from app.store.queries.runs import list_runs
        from app.store.status import ENDED, GROUPS, OPEN
        from app.terminal.runs import print_list
        from trainer.errors import ConfigError

        known = (*GROUPS, *OPEN, *ENDED)
        if status and status not in known:
            raise ConfigError(f"--status {status} is no status. Take one of: {', '.join(known)}.")
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
def show(run: Named, as_json: Json = False, store: Place = None, debug: Debug = False) -> None:
    """Show a run: its state, its last numbers beside what is healthy, and what is wrong."""
    with reported(debug), opened_store(store) as opened:
        from rich.console import Console

        from app.store.queries.artifacts import artifacts_of
        from app.store.queries.metrics import last_values
        from app.terminal.runs import print_run

        with opened.read() as session:
            found = find_named(session, run, opened)
            values = last_values(session, found.id)
            files = artifacts_of(session, found.id)
        if as_json:
            columns = {c.name: getattr(found, c.name) for c in found.__table__.columns}
            metrics = {value.name: value.value for value in values}
            paths = [{"kind": f.kind, "path": f.path, "sha256": f.sha256} for f in files]
            _print_json(columns | {"metrics": metrics, "artifacts": paths})
        else:
            print_run(found, values, files, Console(highlight=False))


@app.command()
def stop(run: Named, store: Place = None, debug: Debug = False) -> None:
    """Ask a run to end after the update at hand, and to keep its adapter."""
    with reported(debug), opened_store(store) as opened:
        from app.jobs.queue import ask

        typer.echo(ask(opened, number_of(opened, run), "stop"))


@app.command()
def delete(
    run: Named,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    store: Place = None,
    debug: Debug = False,
) -> None:
    """Delete a run from the store. Files that a run of the terminal wrote stay; a run of the
    browser goes with its folder."""
    with reported(debug), opened_store(store) as opened:
        from app.store.deletion import delete_run
        from app.text import counted, neutralise

        with opened.read() as session:
            found = find_named(session, run, opened)
        what = f"run {found.id} ({neutralise(found.name)}, {counted(found.completed, 'update')})"
        if found.source == "browser":
            what += f" and its folder {neutralise(found.folder)}"
        if not yes:
            typer.confirm(f"Delete {what}? This cannot be undone.", abort=True, err=True)
        delete_run(opened, found.id)
        say(f"Deleted {what}.")


def _plain(row: Any) -> dict[str, Any]:  # noqa: ANN401  any of the dataclasses of a query
    from dataclasses import asdict

    return asdict(row)


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))
