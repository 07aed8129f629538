"""A server with its queue: opened on a port, and ended without ending the runs."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import uvicorn

from app.jobs.queue import names_at_work
from app.jobs.runs import Jobs
from app.jobs.supervisor import Supervisor
from app.listening import address, listen
from app.server.serving import Server
from app.settings import ServerSettings
from app.store.database import Store
from app.web import create_app

GRACE_SECONDS = 3
"""How long requests that are being answered may take when the server ends."""


@dataclass(slots=True)
class Serving:
    """A server that listens, and does not answer yet."""

    jobs: Jobs
    listening: socket.socket
    server: Server

    @property
    def url(self) -> str:
        return address(self.jobs.settings.host, self.listening)

    def run(self) -> None:
        """Answer until a signal, or `stop`, ends it; a second signal does so at once."""
        # The server ends well first, and then raises for the signal what it would have raised.
        with suppress(KeyboardInterrupt):
            self.server.run(sockets=[self.listening])

    def stop(self) -> None:
        self.server.should_exit = True

    def at_work(self) -> list[str]:
        """The names of the runs of this machine that go on without the server."""
        with self.jobs.store.read() as session:
            return names_at_work(session)


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
