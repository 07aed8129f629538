"""The checks in the order in which a request meets them."""

from __future__ import annotations

from starlette.middleware import Middleware

from app.server.errors import Faults
from app.server.head import Head
from app.server.security.access import Access, LoginRequired
from app.server.security.body import BodyLimit
from app.server.security.headers import SecureHeaders
from app.server.security.hosts import HostCheck, known_hosts
from app.server.security.origin import OriginCheck
from app.settings import ServerSettings


def checks(settings: ServerSettings, access: Access) -> list[Middleware]:
    """They pass a body on as it comes, and a response as it is made: nothing is kept back."""
    return [
        Middleware(SecureHeaders),
        Middleware(Faults),
        Middleware(HostCheck, known=known_hosts(settings)),
        Middleware(BodyLimit, upload_bytes=settings.max_upload_bytes),
        Middleware(LoginRequired, access=access),
        Middleware(OriginCheck, access=access),
        Middleware(Head),
    ]
