"""The server process."""

from __future__ import annotations

import gc
import socket

import uvicorn

from app.server.hints import Hints


class Server(uvicorn.Server):
    """Ends the live streams before it waits for its connections: they never end by themselves."""

    def __init__(self, config: uvicorn.Config, hints: Hints) -> None:
        super().__init__(config)
        self._hints = hints

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Modules and routes stay: without this, the collector goes through all of them again and
        # again while a request reads the many rows of a curve, which takes longer than reading.
        gc.collect()
        gc.freeze()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._hints.close()
        await super().shutdown(sockets)
