"""That a request which changes something comes from a page of this server."""

from __future__ import annotations

from hmac import compare_digest
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from app.server.errors import error_response
from app.server.security.access import Access
from app.server.security.form_field import take_field

HEADER = "x-csrf-token"
FIELD = "csrf_token"
_READING = ("GET", "HEAD", "OPTIONS")
_OWN_SITE = ("same-origin", "none")
"""Of a page of this server, or of the person: typed, or asked for again."""


class OriginCheck:
    """Answers 403. A request that changes something needs the server's own ``Origin`` and the form
    token, as header or as field; with a form of files the field has to come before them, so that
    nothing of an upload is kept before it is known to be wanted. One that came by ``Authorization:
    Bearer`` needs neither, as no page can make a browser send that by itself.

    What reads may come from elsewhere only as a link that a person follows.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app = app
        self.access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        fault = _foreign(request)
        if fault is None and not (request.method in _READING or request.state.bearer):
            given, receive = await _token_in(request, receive)
            fault = _wrong_token(given, request.state.csrf_token)
        if fault is None:
            await self.app(scope, receive, send)
        else:
            await error_response(request, 403, fault)(scope, receive, send)


def _foreign(request: Request) -> str | None:
    """What is wrong with where the request comes from."""
    site = request.headers.get("sec-fetch-site", "same-origin")
    if request.method in _READING:
        linked = request.headers.get("sec-fetch-mode", "navigate") == "navigate"
        if linked or site in _OWN_SITE:
            return None
        return "A page of another site asked for this."
    given = request.headers.getlist("origin")
    if not given and request.state.bearer:
        return None
    if len(given) != 1:
        return "The request has no Origin, which every browser sends along with a form."
    if not _is_own(given[0], request) or site not in _OWN_SITE:
        return "The request comes from a page of another site."
    return None


def _is_own(origin: str, request: Request) -> bool:
    """Whether ``origin`` is where the request went to. A proxy that ends TLS may leave this server
    to believe that it serves http."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    schemes = ("https",) if request.url.scheme == "https" else ("http", "https")
    return parts.scheme in schemes and parts.netloc.lower() == request.headers["host"].lower()


def _wrong_token(given: str | None, wanted: str) -> str | None:
    if given is not None and compare_digest(given.encode(), wanted.encode()):
        return None
    if given is None:
        return f"The request has no token: header {HEADER}, or field {FIELD} before all files."
    return "The page was opened before the server started anew, or before you logged in. Reload it."


async def _token_in(request: Request, receive: Receive) -> tuple[str | None, Receive]:
    if (header := request.headers.get(HEADER)) is not None:
        return header, receive
    return await take_field(request.headers.get("content-type", ""), FIELD, receive)
