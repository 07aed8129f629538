"""How much a request may bring."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.middleware.body_limit import RequestBodyLimitResponder
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from app.server.errors import error_response
from app.server.templating import size
from app.settings import too_large

PLAIN_BYTES = 1 << 20
"""For a body without files: a form, with a configuration pasted into it."""
FORM_BYTES = PLAIN_BYTES + (64 << 10)
"""What a form with files holds beside them: its text, and the heads of its parts."""


class BodyLimit:
    """Answers 413 before a body is read that says it is too large, and while one is read that
    turns out to be. Only a form with files (multipart) may be as large as an upload.

    What is left of a refused body is thrown away by the HTTP server as it comes. To close the
    connection instead would reset it, and a browser would show that and not the reason."""

    def __init__(self, app: ASGIApp, upload_bytes: int) -> None:
        self.app = app
        self.upload_bytes = upload_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        files = headers.get("content-type", "").lower().startswith("multipart/form-data")
        limit = self.upload_bytes + FORM_BYTES if files else PLAIN_BYTES
        announced = headers.get("content-length", "0")
        if announced.isdecimal() and int(announced) > limit:
            words = (
                f"The request brings {size(int(announced))} ({int(announced):,} bytes); a form "
                f"without files, and a configuration, may have at most {size(limit)} ({limit:,} "
                "bytes). Put what makes it so long into a file, and send that as one."
            )
            if files:
                words = too_large(self.upload_bytes)
            answer = error_response(Request(scope), 413, words)
            await answer(scope, receive, send)
            return
        await RequestBodyLimitResponder(self.app, limit)(scope, receive, send)
