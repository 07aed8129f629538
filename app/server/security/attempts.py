"""How often a token may be tried.

Attempts are held, and not refused: whoever has the right token gets in, a few seconds late at
worst, whatever others try meanwhile. A right one is held like a wrong one, so that the time until
the answer tells nothing, and of one client only a few are held at once, so that trying many in
parallel is no faster.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from threading import Lock

FREE = 3
"""Wrong tokens of one client before its attempts are held."""
LONGEST = 5.0
"""Seconds that an attempt is held at most."""
HELD = 2
"""Attempts of one client that are held at the same time; further ones are not looked at."""
TOGETHER = 30
"""Wrong tokens of all clients together, before all are held; one more is free each second."""
_FORGOTTEN_AFTER = 15 * 60.0
_CLIENTS = 4096


@dataclass(slots=True)
class _Client:
    wrong: int = 0
    at: float = 0.0


class Attempts:
    """Counts wrong tokens. ``clock`` gives seconds, ``sleep`` lets them pass. Threads may share
    all but `turn`, which is for one event loop."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._clients: OrderedDict[str, _Client] = OrderedDict()
        self._held: Counter[str] = Counter()
        self._all = 0.0
        self._all_at = clock()
        self._lock = Lock()

    async def turn(self, client: str) -> bool:
        """Hold an attempt of ``client``, for `LONGEST` seconds at most; false where it is not to be
        looked at. Between the end of this and `failed` nothing may be awaited."""
        pause, name = self.wait(client), _network(client)
        if pause <= 0:
            return True
        if self._held[name] >= HELD:
            return False
        self._held[name] += 1
        try:
            await self._sleep(pause)
        finally:
            self._held[name] -= 1
            if not self._held[name]:
                del self._held[name]
        return True

    def wait(self, client: str) -> float:
        """Seconds for which an attempt of ``client`` is held now."""
        with self._lock:
            now = self._clock()
            own = self._clients.get(_network(client), _Client())
            pause = min(2.0 ** (own.wrong - FREE), LONGEST) if own.wrong >= FREE else 0.0
            together = min(self._level(now) - TOGETHER, LONGEST)
            return max(own.at + pause - now, together, 0.0)

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
