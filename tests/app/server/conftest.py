from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import httpx
import pytest
from fastapi import APIRouter
from web import served

from app.settings import ServerSettings
from app.store.database import Store
from app.web import create_app

_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Reading the certificates of the world takes longer than a test."""


@pytest.fixture(scope="package")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    store = Store.open(str(tmp_path_factory.mktemp("server") / "store.db"))
    yield store
    store.close()


@pytest.fixture(scope="package")
def serve(store: Store) -> Iterator[Callable[..., httpx.Client]]:
    """Starts the application as an operator would, with pages of the test's own, and gives a client
    of it, which knows it as its ``app``. The same ones for the same wishes."""
    running: dict[object, httpx.Client] = {}
    with ExitStack() as stack:

        def start(*routers: APIRouter, **settings: object) -> httpx.Client:
            wishes = (*map(id, routers), *sorted(settings.items()))
            if wishes in running:
                return running[wishes]
            app = create_app(ServerSettings(**settings), store)  # type: ignore[arg-type]
            for router in routers:
                app.include_router(router)
            address = stack.enter_context(served(app))
            client = httpx.Client(base_url=address, timeout=20, verify=_NO_TLS)
            client.app = app  # type: ignore[attr-defined]
            running[wishes] = stack.enter_context(client)
            return client

        yield start
