"""What every response tells the browser not to do."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
"""Scripts and styles come from files of this server alone, so that a text that was put into a page
unescaped would still not run."""
SECURE = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    # Stricter would make browsers send `Origin: null` with the forms of this site itself.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_KEPT = "public, max-age=31536000, immutable"


def secure(headers: MutableHeaders, path: str, query: bytes) -> None:
    """Add what is not there. Pages are never stored: they hold a token, and people's data."""
    for name, value in SECURE.items():
        headers.setdefault(name, value)
    if not path.startswith("/static/"):
        headers.setdefault("cache-control", "no-store")
    else:
        # The version in the address changes with the file.
        headers.setdefault("cache-control", _KEPT if query.startswith(b"v=") else "no-cache")


class SecureHeaders:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                found = message["status"] < 400
                path = scope["path"] if found else ""
                secure(MutableHeaders(scope=message), path, scope["query_string"])
            await send(message)

        await self.app(scope, receive, send_secured if scope["type"] == "http" else send)
