"""A port to serve on, and the address that it has for people."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from trainer.errors import RetrogradError

_PORTS_TRIED = 20


def address(host: str, listening: socket.socket) -> str:
    """Where a browser on this machine finds what listens on ``host``."""
    every = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
    shown = every.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{listening.getsockname()[1]}"


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
