"""By which names the server answers. A page of a stranger can let its own name point to this
machine and then read what is served here; it cannot make the browser send another ``Host``."""

from __future__ import annotations

import re
from ipaddress import IPv6Address, ip_address

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from app.settings import ServerSettings
from trainer.errors import ConfigError

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_EVERY_ADDRESS = frozenset({"0.0.0.0", "::", ""})
_HOST = re.compile(r"(?:\[(?P<six>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(?::\d{1,5})?")


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() in LOOPBACK


def refuse_open_door(settings: ServerSettings) -> None:
    """Raises ConfigError where others than this machine could come in without a token."""
    if settings.token is None and not is_loopback(settings.host):
        raise ConfigError(
            f"Serving on {settings.host} lets other machines in, and whoever comes in can start "
            "programs here. Give a token (--token-file, or RETROGRAD_TOKEN), or serve on "
            "127.0.0.1."
        )


def known_hosts(settings: ServerSettings) -> frozenset[str]:
    """The names that every request may use, lower case and without a port."""
    names = {name.lower() for name in (settings.host, *settings.allowed_hosts)}
    return LOOPBACK | {name.strip("[]") for name in names - _EVERY_ADDRESS}


class HostCheck:
    """Answers 400 where ``Host`` is missing, doubled or malformed, and 421 where it is neither
    known nor the address that the connection came to. What it says is plain text: the style sheet
    would be refused under that name too."""

    def __init__(self, app: ASGIApp, known: frozenset[str]) -> None:
        self.app = app
        self.known = known

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif (name := host_name(Headers(scope=scope))) is None:
            await PlainTextResponse("The request names no valid host.\n", 400)(scope, receive, send)
        elif name in self.known or name == _own_address(scope):
            await self.app(scope, receive, send)
        else:
            words = (
                f"This server does not go by the name {name}. If it should, start it with "
                f"--allowed-host {name}.\n"
            )
            await PlainTextResponse(words, 421)(scope, receive, send)


def host_name(headers: Headers) -> str | None:
    """What ``Host`` names, without the port; None where it does not name one thing."""
    given = headers.getlist("host")
    found = _HOST.fullmatch(given[0].lower()) if len(given) == 1 else None
    return found and (found["six"] or found["name"])


def _own_address(scope: Scope) -> str | None:
    """The address of this end of the connection: the one that the caller typed, where the server
    listens on every address. An address cannot be made to point elsewhere, as a name can."""
    try:
        address = ip_address((scope.get("server") or ("",))[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)
