"""The token, the sessions that it opened, and the check that nobody comes in without one."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from threading import Lock
from urllib.parse import urlencode

from pydantic import SecretStr
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.server.errors import error_response, wants_html
from trainer.errors import ConfigError

LEAST_CHARACTERS = 22
"""Of a token: as many as 128 random bits take in base64."""
_LEAST_DIFFERENT = 8
WRONG_SECONDS = 1.0
"""How long the answer to a wrong token waits. The right one is answered at once, whoever tries
beside it, so that nobody can lock out others."""
SESSION_SECONDS = 7 * 24 * 3600
_SESSIONS = 1000


class Access:
    """Lives in memory alone: a server that starts again asks everybody to log in again, and
    neither the key nor a session's name is written anywhere.

    Tokens are looked at as they come, right and wrong ones, however many were wrong before; only
    the answer to a wrong one waits. What keeps strangers out is that a token is too long to be
    found by trying (`refuse_short`).
    """

    def __init__(self, token: SecretStr | None, clock: Callable[[], float] = time.time) -> None:
        self._token = None if token is None else _digest(token.get_secret_value())
        self._key = secrets.token_bytes(32)
        self._ends: dict[bytes, float] = {}
        self._clock = clock
        self._lock = Lock()

    @property
    def needed(self) -> bool:
        return self._token is not None

    def is_token(self, given: str) -> bool:
        """Takes as long for a token that is nearly right as for any other."""
        return self._token is not None and hmac.compare_digest(_digest(given), self._token)

    def open_session(self) -> str:
        name = secrets.token_urlsafe(32)
        with self._lock:
            now = self._clock()
            self._ends = {key: end for key, end in self._ends.items() if end > now}
            while len(self._ends) >= _SESSIONS:
                del self._ends[next(iter(self._ends))]
            self._ends[_digest(name)] = now + SESSION_SECONDS
        return name

    def is_open(self, session: str) -> bool:
        with self._lock:
            return self._ends.get(_digest(session), 0.0) > self._clock()

    def close_session(self, session: str) -> None:
        with self._lock:
            self._ends.pop(_digest(session), None)

    def still_admits(self, request: Request) -> bool:
        """Whether who was let in for ``request`` would be so now: after a logout they are not."""
        state = request.state
        return not self.needed or state.bearer or self.is_open(state.session)

    def form_token(self, session: str) -> str:
        """What the forms of a session's pages carry; no other session, server or page knows it.
        Without a login all pages belong to the session ``""``."""
        return hmac.new(self._key, session.encode(), hashlib.sha256).hexdigest()


def refuse_short(token: SecretStr | None) -> None:
    """Raises ConfigError for a token that could be found by trying, as far as its letters tell."""
    if token is None:
        return
    letters = token.get_secret_value()
    if len(letters) < LEAST_CHARACTERS or len(set(letters)) < _LEAST_DIFFERENT:
        raise ConfigError(
            f"The token of the server has {len(letters)} characters, {len(set(letters))} of them "
            f"different, and could be found by trying. It needs {LEAST_CHARACTERS} or more, "
            f"{_LEAST_DIFFERENT} of them different, and drawn at random. Make one with: "
            'python3 -c "import secrets; print(secrets.token_urlsafe(24))"'
        )


def cookie_name(request: Request) -> str:
    """With the port, because the servers of one machine share their cookies."""
    port = request.url.port or (443 if request.url.scheme == "https" else 80)
    return f"retrograd_session_{port}"


class LoginRequired:
    """Tells each request its session, the form token of that session (``request.state.session``,
    ``csrf_token``), and whether it came by ``Authorization: Bearer`` (``bearer``). Where a token is
    set and neither is there, pages go to the login and everything else is answered 401."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app = app
        self.access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        refusal = self._admit(request)
        if refusal is not None and "authorization" in request.headers:
            await asyncio.sleep(WRONG_SECONDS)
        await (refusal or self.app)(scope, receive, send)

    def _admit(self, request: Request) -> Response | None:
        state, access = request.state, self.access
        session = request.cookies.get(cookie_name(request), "") if access.needed else ""
        state.session = session if session and access.is_open(session) else ""
        state.csrf_token = access.form_token(state.session)
        state.bearer = False
        if not access.needed or is_open_path(request.scope["path"]):
            return None
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            refusal = self._try(request, given.strip())
            state.bearer = refusal is None
            return refusal
        return None if state.session else _login_first(request)

    def _try(self, request: Request, token: str) -> Response | None:
        if self.access.is_token(token):
            return None
        return _unauthorized(request, "This is not the server's token.")


def is_open_path(path: str) -> bool:
    """Whether it is served to those who have not logged in."""
    return path == "/login" or path.startswith("/static/")


def _login_first(request: Request) -> Response:
    came_for = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    if request.method in ("GET", "HEAD") and wants_html(request):
        if "hx-request" not in request.headers:
            return RedirectResponse(f"/login?{urlencode({'next': came_for})}", 303)
        # A fragment: the page as a whole has to go there.
        return Response(status_code=401, headers={"hx-redirect": "/login"})
    words = "Log in at /login, or send the token as Authorization: Bearer."
    return _unauthorized(request, words)


def _unauthorized(request: Request, words: str) -> Response:
    return error_response(request, 401, words, {"www-authenticate": "Bearer"})


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
