"""``retrograd fetch``"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.errors import Debug, reported

if TYPE_CHECKING:
    from app.fetch import Fetched


def fetch(
    name: Annotated[
        str,
        typer.Argument(help="smollm2-135m, gemma3-270m, or hf:OWNER/REPOSITORY/FILE.gguf."),
    ],
    to: Annotated[Path, typer.Option(help="The folder that receives the file.")],
    force: Annotated[
        bool, typer.Option("--force", help="Replace a file of that name with other contents.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Bring a model into a folder and check that it is the one meant."""
    with reported(debug):
        from app.fetch import fetch as bring
        from app.rows import prose

        fetched = bring(name, to, force=force)
        verb = "is there already" if fetched.kept else "fetched"
        typer.echo(prose(f"{fetched.path}: {verb}, {_checked(fetched)}", sys.stdout))
        typer.echo(f"  size     {fetched.size:,} bytes")
        typer.echo(f"  SHA-256  {fetched.sha256}")
        typer.echo(f"  licence  {fetched.licence or 'see the page of its repository'}")
        typer.echo(f"  source   {fetched.source}")


def _checked(fetched: Fetched) -> str:
    if fetched.hash_known:
        return "its size and its SHA-256 are the expected ones"
    return "its size is the expected one; its source states no SHA-256 to check it by"
