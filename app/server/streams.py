"""Streams of events that go on for as long as their readers may read them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fastapi import Request

from app.server.security.access import Access

CHECK_SECONDS = 2.0
"""Between two looks at whether the reader is still logged in, where nothing else happens."""
RETRY_MILLISECONDS = 1000
"""After which a browser asks again for a stream that has broken."""
News = TypeVar("News")


async def next_for(request: Request, news: Callable[[], Awaitable[News]]) -> News | None:
    """What ``news`` returns; None as soon as who asked for the stream is logged out, which is seen
    within `CHECK_SECONDS`. Where it takes longer, ``news`` is cancelled and called again."""
    access: Access = request.app.state.access
    while access.still_admits(request):
        try:
            found = await asyncio.wait_for(news(), CHECK_SECONDS)
        except TimeoutError:
            continue
        return found if access.still_admits(request) else None
    return None
