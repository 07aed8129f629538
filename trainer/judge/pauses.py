"""How long to wait before a request is repeated."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


@dataclass(frozen=True, slots=True)
class Pauses:
    """Pauses in seconds: the first, twice that, and so on to the longest. A server's own wish is
    followed up to ``longest_wish``."""

    first: float = 0.5
    longest: float = 30.0
    longest_wish: float = 60.0

    def before(self, repetition: int) -> float:
        """The pause before a repetition, counted from 1: half of it is drawn anew each time, so
        that requests that failed together do not come back together."""
        full = min(self.longest, self.first * 2.0 ** min(repetition - 1, 60))
        return full * random.uniform(0.5, 1.0)

    def wish(self, header: str | None) -> float | None:
        """The pause that a ``Retry-After`` header asks for, or None."""
        seconds = None if header is None else retry_after(header, datetime.now(UTC))
        return None if seconds is None else min(seconds, self.longest_wish)


def retry_after(header: str, now: datetime) -> float | None:
    """Seconds from ``now``, of either form that RFC 9110 (10.2.3) has: a number of seconds, or a
    date. None where it is neither."""
    text = header.strip()
    if text.isascii() and text.isdigit():
        # A number that is too large for a float is as good as any large one.
        return float(text[:15])
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - now).total_seconds())
