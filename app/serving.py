"""A server with its queue: opened on a port, and ended without ending the runs."""

from __future__ import annotations

import errno
import gc
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import uvicorn
from sqlalchemy import select

from app.jobs.runs import Jobs
from app.jobs.supervisor import Supervisor
from app.server.serving import Server
from app.settings import ServerSettings
from app.store.database import Store
from app.store.models import Run
from app.store.status import ACTIVE
from app.web import create_app
from trainer.errors import RetrogradError

GRACE_SECONDS = 3
"""How long requests that are being answered may take when the server ends."""
_PORTS_TRIED = 20


@dataclass(slots=True)
class Serving:
    """A server that listens, and does not answer yet."""

    jobs: Jobs
    listening: socket.socket
    server: Server

    @property
    def url(self) -> str:
        host, port = self.jobs.settings.host, self.listening.getsockname()[1]
        every = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
        shown = every.get(host, f"[{host}]" if ":" in host else host)
        return f"http://{shown}:{port}"

    def run(self) -> None:
        """Answer until a signal, or `stop`, ends it; a second signal does so at once."""
        # What is loaded by now stays: a collection that looks through it all again costs a request
        # tens of milliseconds.
        gc.collect()
        gc.freeze()
        # The server ends well first, and then raises for the signal what it would have raised.
        with suppress(KeyboardInterrupt):
            self.server.run(sockets=[self.listening])

    def stop(self) -> None:
        self.server.should_exit = True

    def at_work(self) -> list[str]:
        """The names of the runs that go on without the server."""
        with self.jobs.store.read() as session:
            going = session.scalars(select(Run.name).where(Run.status.in_(ACTIVE)))
            return list(going)


@contextmanager
def opened(settings: ServerSettings, *, next_free_port: bool = False) -> Iterator[Serving]:
    """Open the store, the port and the queue. Raises StoreError, ConfigError, RetrogradError."""
    store = Store.open(settings.store)
    try:
        app = create_app(settings, store)
        with listen(settings.host, settings.port, next_free=next_free_port) as listening:
            config = uvicorn.Config(
                app,
                access_log=False,
                log_level="warning",
                timeout_graceful_shutdown=GRACE_SECONDS,
                lifespan="off",
            )
            jobs = Jobs(store, settings)
            jobs.discard_old_drafts(time.time())
            supervisor = Supervisor(jobs)
            supervisor.start()
            try:
                yield Serving(jobs, listening, Server(config, (app.state.hints, app.state.desk)))
            finally:
                supervisor.stop()
                app.state.hints.close()
                app.state.desk.close()
    finally:
        store.close()


@contextmanager
def listen(host: str, port: int, *, next_free: bool) -> Iterator[socket.socket]:
    """A socket on ``port`` (0: any), or with ``next_free`` on the next one that is free. Raises
    RetrogradError."""
    ports = range(port, min(port + _PORTS_TRIED, 65536)) if next_free and port else (port,)
    for number in ports:
        try:
            listening = _bound(host, number)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and number != ports[-1]:
                continue
            raise RetrogradError(_refused(host, number, error)) from error
        with listening:
            yield listening
        return


def _bound(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    return socket.create_server(address[:2], family=family)


def _refused(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"Port {port} of {host} is taken. Name another one with --port, or 0 for any free one."
        )
    return (
        f"The server cannot listen on port {port} of {host}: {error.strerror or error}. Name "
        "others with --host and --port."
    )
