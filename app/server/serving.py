"""The server process."""

from __future__ import annotations

import gc
import socket
from collections.abc import Sequence
from typing import Protocol

import uvicorn


class Streams(Protocol):
    """What keeps live streams open."""

    def close(self) -> None:
        """End them, and let none begin."""
        ...


class Server(uvicorn.Server):
    """Ends the live streams before it waits for its connections: they never end by themselves."""

    def __init__(self, config: uvicorn.Config, streams: Sequence[Streams]) -> None:
        super().__init__(config)
        self._streams = streams

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Modules and routes stay: without this, the collector goes through all of them again and
        # again while a request reads the many rows of a curve, which takes longer than reading.
        gc.collect()
        gc.freeze()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for streams in self._streams:
            streams.close()
        await super().shutdown(sockets)
