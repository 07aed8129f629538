"""``retrograd serve-model``"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from app.cli.errors import Debug, reported, say

Model = Annotated[
    Path,
    typer.Argument(
        help="A GGUF model, or the TOML file of a run: then its model and what it has written.",
        show_default=False,
    ),
]
Adapter = Annotated[
    Path | None,
    typer.Option(help="Served beside the base, in place of the run's.", show_default=False),
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")]
Host = Annotated[
    str, typer.Option(help="Address to listen on; any but loopback needs --api-key-file.")
]
Ctx = Annotated[
    int | None,
    typer.Option(
        min=256,
        help="Most tokens of a conversation with its answer.",
        show_default="4096, or what the model was trained for",
    ),
]
KeyFile = Annotated[
    Path | None, typer.Option(help="File with the key that every request has to bring.")
]


def serve_model(
    model: Model,
    adapter: Adapter = None,
    port: Port = 8080,
    host: Host = "127.0.0.1",
    ctx: Ctx = None,
    api_key_file: KeyFile = None,
    debug: Debug = False,
) -> None:
    """Serve a model and its adapter by the chat API of OpenAI, until Ctrl-C.

    The server is llama-cpp-python's own. It calls the models base and adapter, and trained
    a whole model that a run has written.
    """
    with reported(debug):
        from app.cli.secret import secret_in
        from app.model_server import offer_of_files, offer_of_run, opened
        from app.rows import prose
        from trainer.config import load_config

        key = secret_in(api_key_file, "key") if api_key_file else None
        if model.suffix == ".toml":
            offer = offer_of_run(load_config(model), adapter, ctx)
        else:
            offer = offer_of_files(model, adapter, ctx)
        for remark in offer.remarks:
            say(remark)
        with opened(offer, host=host, port=port, key=key) as serving:
            names = " and ".join(offer.names)
            line = f"{names} of {offer.base.name}: {serving.url} (Ctrl-C ends it)"
            typer.echo(prose(line, sys.stdout))
            serving.run()
            _leave()


def _leave() -> None:
    """End at once. Python would wait for an answer that is still being computed and that nobody
    hears any more, and llama.cpp would log its end through an interpreter that has gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
