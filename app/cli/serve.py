"""``retrograd serve``"""

from __future__ import annotations

import os
import threading
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.errors import Debug, reported, say

if TYPE_CHECKING:
    from app.settings import ServerSettings

Host = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Where to listen, in place of 127.0.0.1; any but loopback needs a token.",
    ),
]
Port = Annotated[
    int | None,
    typer.Option(min=0, max=65535, metavar="N", help="In place of 8765; 0 takes a free one."),
]
Workspace = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Files that a configuration names and that were not uploaded are looked for here, in "
        "place of the current folder, and nowhere else.",
    ),
]
StoreUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="File or SQLAlchemy URL, in place of RETROGRAD_STORE or the user's own store.",
    ),
]
Most = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Runs at a time, in place of 1; others wait."),
]
DataFolder = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="The folders of the browser's runs are made in here; unless named, beside the store.",
    ),
]
UploadMib = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Files that may be uploaded for a run, together, in MiB, in place of 64.",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(help="File with the token to log in with, in place of RETROGRAD_TOKEN."),
]
Allowed = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COMMAND",
        help="With a token: a program, or the beginning of a command, that uploaded "
        "configurations may run. Can be given more than once.",
    ),
]
Trusting = Annotated[
    bool, typer.Option("--trust-uploads", help="With a token: uploads may run anything.")
]
Names = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="Another name that the server goes by. Can be given more than once."
    ),
]
Browser = Annotated[bool, typer.Option("--open/--no-open", help="Show it in a browser at once.")]


def serve(
    host: Host = None,
    port: Port = None,
    workspace: Workspace = None,
    store: StoreUrl = None,
    data_folder: DataFolder = None,
    max_concurrent_runs: Most = None,
    max_upload_mib: UploadMib = None,
    token_file: TokenFile = None,
    allow_command: Allowed = None,
    trust_uploads: Trusting = False,
    allowed_host: Names = None,
    open_browser: Browser = False,
    debug: Debug = False,
) -> None:
    """Serve the dashboard, and make the runs of its queue.

    Runs are processes of their own: they go on when the server ends, and the next one finds them.
    """
    with reported(debug):
        given: dict[str, Any] = {
            "host": host,
            "port": port,
            "workspace": workspace,
            "store": store,
            "data_folder": data_folder,
            "max_concurrent_runs": max_concurrent_runs,
            "max_upload_bytes": None if max_upload_mib is None else max_upload_mib << 20,
            "token": _token(token_file),
            "allow_command": tuple(allow_command) if allow_command else None,
            "trust_uploads": trust_uploads or None,
            "allowed_hosts": tuple(allowed_host) if allowed_host else None,
        }
        settings = _settings({key: value for key, value in given.items() if value is not None})

        from app.serving import opened

        with opened(settings) as serving:
            typer.echo(f"retrograd is at {serving.url} (Ctrl-C ends it; runs go on)")
            if open_browser:
                show_soon(serving.url)
            serving.run()
            say_what_goes_on(serving.at_work())


def show_soon(url: str) -> None:
    """In the user's browser, once the server answers."""
    timer = threading.Timer(0.5, webbrowser.open, [url])
    timer.daemon = True
    timer.start()


def say_what_goes_on(names: list[str]) -> None:
    """The last word of a server."""
    if names:
        verb = "goes" if len(names) == 1 else "go"
        say(f"The server has ended; {', '.join(names)} {verb} on. The next one finds them again.")


def _token(file: Path | None) -> str | None:
    from app.cli.secret import secret_in
    from trainer.errors import ConfigError

    if file is None:
        if "RETROGRAD_TOKEN" in os.environ and not os.environ["RETROGRAD_TOKEN"].strip():
            raise ConfigError("RETROGRAD_TOKEN is empty: put a token in it, or unset it.")
        return None
    return secret_in(file, "token")


def _settings(given: dict[str, Any]) -> ServerSettings:
    """Raises ConfigError."""
    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    from app.settings import ServerSettings
    from trainer.errors import ConfigError

    try:
        settings = ServerSettings(**given)
    except ValidationError as error:
        fault = error.errors()[0]
        name = "_".join(str(part) for part in fault["loc"][:1])
        raise ConfigError(f"RETROGRAD_{name.upper()}: {fault['msg']}.") from error
    except SettingsError as error:
        raise ConfigError(f"A variable RETROGRAD_… cannot be read: {error}.") from error
    if not settings.workspace.is_dir():
        raise ConfigError(f"--workspace {settings.workspace}: there is no such folder.")
    return settings
