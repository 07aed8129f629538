"""How often a token may be tried."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from threading import Lock

FREE = 3
"""Wrong tokens of one client before it has to wait."""
LONGEST = 60.0
"""Seconds that one client waits at most."""
TOGETHER = 30
"""Wrong tokens of all clients together, before all wait; one more is free each second."""
_FORGOTTEN_AFTER = 15 * 60.0
_CLIENTS = 4096


@dataclass(slots=True)
class _Client:
    wrong: int = 0
    at: float = 0.0


class Attempts:
    """Counts wrong tokens. ``clock`` gives seconds. Threads may share it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._clients: OrderedDict[str, _Client] = OrderedDict()
        self._all = 0.0
        self._all_at = clock()
        self._lock = Lock()

    def wait(self, client: str) -> float:
        """Seconds until ``client`` may try again; 0: now. To be asked before a token is looked at,
        or trying on would be worth it."""
        with self._lock:
            now = self._clock()
            own = self._clients.get(_network(client), _Client())
            pause = min(2.0 ** (own.wrong - FREE), LONGEST) if own.wrong >= FREE else 0.0
            return max(own.at + pause - now, self._level(now) - TOGETHER, 0.0)

    def failed(self, client: str) -> None:
        with self._lock:
            now, name = self._clock(), _network(client)
            own = self._clients.pop(name, _Client())
            if now - own.at > _FORGOTTEN_AFTER:
                own.wrong = 0
            own.wrong, own.at = min(own.wrong + 1, FREE + 30), now
            self._clients[name] = own
            if len(self._clients) > _CLIENTS:
                self._clients.popitem(last=False)
            self._all, self._all_at = self._level(now) + 1.0, now

    def succeeded(self, client: str) -> None:
        with self._lock:
            self._clients.pop(_network(client), None)

    def _level(self, now: float) -> float:
        return max(0.0, self._all - (now - self._all_at))


def _network(client: str) -> str:
    """The client, or the network of 64 bits of which one machine commonly has all addresses."""
    try:
        address = ip_address(client)
    except ValueError:
        return client
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return address.exploded[:19]
    return str(address)
