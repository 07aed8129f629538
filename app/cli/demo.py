"""``retrograd demo``"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.errors import Debug, reported, say
from app.cli.serve import Browser, StoreUrl, show_soon
from app.cli.train import Seed

if TYPE_CHECKING:
    from app.demo import Demo
    from app.serving import Serving


def demo(
    to: Annotated[
        Path, typer.Option(help="The folder for the example's files and the adapter.")
    ] = Path("retrograd-demo"),
    seed: Seed = None,
    once: Annotated[
        bool, typer.Option("--once", help="End when the run has ended, without serving on.")
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The next free one is taken where it is not.")
    ] = 8765,
    store: StoreUrl = None,
    open_browser: Browser = False,
    debug: Debug = False,
) -> None:
    """Train the tiny model that comes with retrograd, for real, in a minute or two, and watch it in
    the browser."""
    with reported(debug):
        from app.demo import enter, prepare
        from app.serving import opened
        from app.settings import ServerSettings

        prepared = prepare(to)
        for line in prepared.remarks:
            say(line)
        given: dict[str, Any] = {"host": "127.0.0.1", "port": port, "token": None}
        given |= {"workspace": prepared.folder} | ({"store": store} if store else {})
        settings = ServerSettings(**given)
        with opened(settings, next_free_port=True) as serving:
            run_id = enter(serving.jobs, prepared, seed)
            url = f"{serving.url}/runs/{run_id}"
            typer.echo(f"Watch it learn: {url}")
            if open_browser:
                show_soon(url)
            status = _train_and_serve(serving, prepared, run_id, url, once=once)
        raise typer.Exit(status)


def _train_and_serve(serving: Serving, demo: Demo, run_id: int, url: str, *, once: bool) -> int:
    """Returns the exit status that the run stands for."""
    from app.cli.follow import Follower
    from app.demo import keep_adapter, next_steps

    follower = Follower(serving.jobs.store, run_id)

    def follow() -> None:
        run = follower.follow()
        if run is None:
            return
        if run.status == "completed":
            adapter = keep_adapter(demo, run.output)
            typer.echo(next_steps(demo, url, adapter))
        if once:
            serving.stop()
        else:
            say(f"The dashboard is at {serving.url} until you press Ctrl-C.")

    watching = threading.Thread(target=follow, name="demo", daemon=True)
    watching.start()
    serving.run()
    return follower.finish(watching)
