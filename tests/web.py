"""The web application as a test meets it: under a name that it knows, with what a page would send
along, or served for real on a port of loopback."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import uvicorn
from fastapi import FastAPI

TOKEN_IN_PAGE = re.compile(r'<meta name="csrf-token" content="([^"]*)">')


@contextmanager
def served(app: FastAPI, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """The address of ``app`` under a real uvicorn, in a thread of this process. ``host`` is an
    address of loopback to listen on; ``port`` 0 is any that is free."""
    listening = socket.create_server((host, port))
    server = uvicorn.Server(
        uvicorn.Config(app, access_log=False, log_config=None, timeout_graceful_shutdown=2)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://{host}:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=30)
        listening.close()
    assert not thread.is_alive()


def page_headers(client: httpx.Client, page: str = "/") -> dict[str, str]:
    """What the page at ``page`` sends along when it changes something. ``client`` is an HTTP client
    with a base URL, or FastAPI's own test client."""
    html = client.get(page, headers={"accept": "text/html"}).text
    found = TOKEN_IN_PAGE.search(html)
    assert found is not None, f"{page} carries no token: {html[:200]}"
    base = client.base_url
    port = f":{base.port}" if base.port is not None else ""
    return {"origin": f"{base.scheme}://{base.host}{port}", "x-csrf-token": found[1]}
