"""The chat API of OpenAI over a base model and its adapter: llama-cpp-python's own server, set up.

That server holds one model at a time. A request for another one of its names closes the model and
opens the other, so both cost the memory of one, and a change of names costs the time to load.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from llama_cpp.server.app import create_app
from llama_cpp.server.settings import ModelSettings, ServerSettings
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from app.listening import address, listen
from app.model_requests import CheckedRequests
from app.server.security.hosts import is_loopback
from trainer.chat import messages
from trainer.chat.prompts import open_template
from trainer.chat.template import ChatTemplate
from trainer.chat.vocabulary import Vocabulary
from trainer.config.models import RunConfig
from trainer.conversation import context_of
from trainer.data import chat_template
from trainer.errors import ConfigError, ModelError
from trainer.gguf.architecture import describe
from trainer.gguf.file import GgufFile
from trainer.gguf.fitting import check_fits

GRACE_SECONDS = 3
_LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]", "::1")


@dataclass(frozen=True, slots=True)
class Offer:
    """What is served: ``base``, and under another name the same with ``adapter`` on it, or the
    whole model ``trained`` that a run has made of it.

    ``ctx`` is the most tokens of a conversation with its answer, and ``variables`` are those of the
    chat template. ``remarks`` tell where prompts differ from those of training.
    """

    base: Path
    adapter: Path | None
    ctx: int
    trained: Path | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    threads: int | None = None
    gpu: bool = True
    remarks: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """What the models are called; the first answers where a request names none."""
        return [name for name, _, _ in self.models]

    @property
    def models(self) -> list[tuple[str, Path, Path | None]]:
        """Each model's name, its file, and the adapter on it."""
        models: list[tuple[str, Path, Path | None]] = [("base", self.base, None)]
        if self.adapter is not None:
            models.append(("adapter", self.base, self.adapter))
        if self.trained is not None:
            models.append(("trained", self.trained, None))
        return models


def offer_of_files(base: Path, adapter: Path | None, ctx: int | None = None) -> Offer:
    """What the files hold, checked. Raises ModelError, ConfigError, TemplateError."""
    with Vocabulary.open(base) as vocabulary, open_template(vocabulary, base) as template:
        remarks = tuple(_remarks(vocabulary, template))
    return Offer(base, adapter, _checked(base, adapter, ctx), remarks=remarks)


def offer_of_run(config: RunConfig, adapter: Path | None, ctx: int | None = None) -> Offer:
    """The base model of a run and what it has written, an adapter or a whole model; ``adapter``
    takes its place.
    Raises as `offer_of_files`."""
    base, result = config.model.path, adapter or config.output.path
    whole = adapter is None and config.output.kind == "model"
    if adapter is None and not result.is_file():
        raise ConfigError(
            f"{config.where('output.path')}: {result}: there is no such file yet. Train it with "
            "`retrograd train`, name another one with --adapter, or serve the base alone by giving "
            "the model's path."
        )
    with Vocabulary.open(base) as vocabulary, chat_template(config, vocabulary) as template:
        remarks = [*_remarks(vocabulary, template)]
    if config.model.merge_system:
        remarks.append(
            "The server does not merge system messages (model.merge_system = true): put that text "
            "into the first user message."
        )
    if whole:
        describe(GgufFile(result))
    return Offer(
        base,
        None if whole else result,
        _checked(base, None if whole else result, ctx),
        trained=result if whole else None,
        variables=config.model.template_variables,
        threads=config.training.threads,
        gpu=config.model.device != "cpu",
        remarks=tuple(remarks),
    )


def _remarks(vocabulary: Vocabulary, template: ChatTemplate) -> Iterator[str]:
    spans = template.render([messages.Message("user", "x")])
    start = vocabulary.tokenize("".join(span.text for span in spans), special=True)[:1]
    if vocabulary.adds_bos and start != [vocabulary.bos]:
        yield (
            "The chat template writes no BOS, and neither does the server, although the vocabulary "
            "asks for one: in training each prompt begins with it."
        )


def _checked(base: Path, adapter: Path | None, ctx: int | None) -> int:
    """The context to serve with, once model and adapter were seen to fit."""
    file = GgufFile(base)
    architecture = describe(file)
    if adapter is not None:
        if not adapter.is_file():
            raise ModelError(f"{adapter}: there is no such file. Name an adapter in GGUF.")
        check_fits(GgufFile(adapter), file)
    return context_of(base, ctx, architecture.trained_context)


def application(offer: Offer, key: str | None) -> FastAPI:
    """llama-cpp-python's server with the models of ``offer``, the first of them loaded.

    Without a key it answers requests to loopback's names alone and tells browsers nothing about
    other origins, so that no page of the web can use it through its reader's browser.

    Raises:
        ModelError: llama.cpp cannot load the model.
    """
    # It would be read in place of what is given here.
    os.environ.pop("CONFIG_FILE", None)
    # Constructed, because validation would fill them up from the environment.
    server = ServerSettings.model_construct(api_key=key, interrupt_requests=False)
    try:
        app: FastAPI = create_app(server_settings=server, model_settings=_models(offer))
    except ValueError as error:
        raise ModelError(f"{offer.base}: llama.cpp cannot serve it: {error}") from error
    # Innermost: a refusal, too, is read by pages that may read answers.
    app.user_middleware.append(Middleware(CheckedRequests, names=offer.names, key=key))
    if key is None:
        kinds: list[Any] = [m.cls for m in app.user_middleware]
        del app.user_middleware[kinds.index(CORSMiddleware)]
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(_LOOPBACK_NAMES))
    return app


def _models(offer: Offer) -> list[ModelSettings]:
    threads = {"n_threads": offer.threads, "n_threads_batch": offer.threads}
    return [
        ModelSettings.model_construct(
            model=str(path),
            model_alias=name,
            lora_path=str(adapter) if adapter else None,
            n_ctx=offer.ctx,
            n_gpu_layers=-1 if offer.gpu else 0,
            # Logits of all positions would take ctx × vocabulary floats.
            logits_all=False,
            chat_template_kwargs=dict(offer.variables) or None,
            verbose=False,
            **(threads if offer.threads else {}),
        )
        for name, path, adapter in offer.models
    ]


@dataclass(slots=True)
class ModelServer:
    """A server that listens, and does not answer yet; ``url`` is what clients take as base URL."""

    url: str
    server: uvicorn.Server
    listening: Any

    def run(self) -> None:
        """Answer until a signal ends it; what is being computed then goes on in its thread."""
        with suppress(KeyboardInterrupt):
            self.server.run(sockets=[self.listening])


@contextmanager
def opened(offer: Offer, *, host: str, port: int, key: str | None) -> Iterator[ModelServer]:
    """Take the port, then load the model. Raises ConfigError for a host that is not loopback's
    without a key, RetrogradError for a port that is taken, and as `application`."""
    if key is None and not is_loopback(host):
        raise ConfigError(
            f"--host {host} is reached from other machines, and whoever reaches it could use the "
            "model. Give a key with --api-key-file, or leave the host at 127.0.0.1."
        )
    with listen(host, port, next_free=False) as listening:
        config = uvicorn.Config(
            application(offer, key),
            access_log=False,
            # Failed requests are told by their own handler; what is cut off at the end is no fault.
            log_level="critical",
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        yield ModelServer(f"{address(host, listening)}/v1", uvicorn.Server(config), listening)
