"""Requests with HEAD: answered as GET is, without what would be read."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class _NobodyReadsOnError(Exception):
    """Ends a handler that would go on with its answer."""


class Head:
    """Whatever answers GET answers HEAD, with the same status and headers. Of a long answer, such
    as a download or a stream, no more than the beginning is made."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        ended = False

        async def send_head(message: Message) -> None:
            nonlocal ended
            if message["type"] != "http.response.body":
                await send(message)
                return
            if not ended:
                ended = True
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            if message.get("more_body"):
                raise _NobodyReadsOnError

        try:
            await self.app({**scope, "method": "GET"}, receive, send_head)
        except _NobodyReadsOnError:
            pass
        except ExceptionGroup as group:
            # What a handler was doing side by side when its answer was cut off.
            _, others = group.split(_NobodyReadsOnError)
            if others is not None:
                raise others from None
