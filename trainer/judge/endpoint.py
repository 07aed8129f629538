"""Requests to an endpoint that speaks OpenAI's protocol: bounded, repeated, and never telling."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TypeVar
from urllib.parse import urlsplit

import httpx

from trainer.judge.pauses import Pauses
from trainer.judge.questions import Failure
from trainer.judge.replies import BadReplyError
from trainer.judge.secret import ApiKey
from trainer.reward.report import shorten

MAX_REPLY_BYTES = 4 * 2**20
REPEATED_STATUSES = frozenset({408, 425, 429})
"""Client errors that pass by themselves."""

_SHOWN_CHARS = 300
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why an attempt failed, and the part of a reply that came. No exception leaves the client:
    those of httpx carry the request, and with it the key."""

    reason: str
    again: bool
    wish: float | None = None
    part: str | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request: the text of its reply, the trouble, or a text that is trouble."""

    text: str | None
    trouble: Trouble | None
    seconds: float


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """Where requests go and how patiently. ``key_variable`` is named in advice."""

    base_url: str
    key: ApiKey | None
    key_variable: str
    timeout: float
    max_retries: int
    max_concurrency: int
    pauses: Pauses

    @property
    def url(self) -> str:
        return self.base_url.rstrip("/") + "/chat/completions"

    @property
    def direct(self) -> bool:
        """Whether the endpoint is this machine, which a proxy elsewhere would look for in vain."""
        parts = urlsplit(self.base_url)
        try:
            here = ip_address(parts.hostname or "").is_loopback
        except ValueError:
            here = parts.hostname == "localhost"
        return here and parts.scheme == "http"


class Endpoint:
    """Chat completions of one endpoint. Lives inside one event loop; close it by ``aclose``."""

    def __init__(self, settings: EndpointSettings) -> None:
        self._settings = settings
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if settings.key is not None:
            headers["Authorization"] = settings.key.header()
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=settings.timeout,
            limits=httpx.Limits(max_connections=settings.max_concurrency),
            trust_env=not settings.direct,
        )
        self._turn = asyncio.Semaphore(settings.max_concurrency)
        self._resume_at = 0.0

    async def aclose(self) -> None:
        await self._client.aclose()

    async def complete(
        self,
        payload: Callable[[bool], Mapping[str, object]],
        read: Callable[[str], R],
        on_attempt: Callable[[bool, Attempt], None],
    ) -> R | Failure:
        """What ``read`` makes of the reply's text; it raises BadReplyError for one that is no use.

        ``payload(again)`` is the body; ``again`` is true once a reply was no use. ``on_attempt``
        hears of each request, with the same ``again``.
        """
        retries, again, number = self._settings.max_retries, False, 1
        while True:
            async with self._turn:
                # The pause is everybody's: a server that asks for it means the sum of requests.
                await asyncio.sleep(max(0.0, self._resume_at - time.monotonic()))
                attempt = await self._post(payload(again))
            found, attempt = _read(attempt, read)
            on_attempt(again, attempt)
            if not isinstance(found, Trouble):
                return found
            if not found.again or number > retries:
                return Failure(found.reason + _times(number))
            again = again or attempt.text is not None
            await self._pause(number, found)
            number += 1

    async def _pause(self, repetition: int, trouble: Trouble) -> None:
        wish = trouble.wish
        if wish is not None:
            self._resume_at = max(self._resume_at, time.monotonic() + wish)
        await asyncio.sleep((wish or 0.0) + self._settings.pauses.before(repetition))

    async def _post(self, payload: Mapping[str, object]) -> Attempt:
        began = time.monotonic()
        body = json.dumps(payload).encode()
        found = await self._exchange(body)
        seconds = time.monotonic() - began
        if isinstance(found, Trouble):
            part = None if found.part is None else self._redact(found.part)
            return Attempt(part, found, seconds)
        return Attempt(self._redact(found), None, seconds)

    async def _exchange(self, body: bytes) -> str | Trouble:
        """The text of the reply. Nothing that httpx raises goes on from here."""
        try:
            # httpx counts from byte to byte; a server that trickles would never be late.
            async with (
                asyncio.timeout(self._settings.timeout),
                self._client.stream("POST", self._settings.url, content=body) as response,
            ):
                data = bytearray()
                async for chunk in response.aiter_bytes():
                    data += chunk
                    if len(data) > MAX_REPLY_BYTES:
                        return Trouble(f"it sent more than {MAX_REPLY_BYTES} bytes", again=True)
        except (TimeoutError, httpx.TimeoutException):
            seconds = self._settings.timeout
            return Trouble(f"no reply came within {seconds:g} s (timeout_secs)", again=True)
        except (httpx.HTTPError, httpx.StreamError) as error:
            words = self._redact(str(error) or type(error).__name__)
            return Trouble(f"the connection failed: {shorten(words, _SHOWN_CHARS)}", again=True)
        # Before anything is shortened: half a key is no longer found.
        text = self._redact(data.decode("utf-8", "replace"))
        return _content(text) if response.status_code == 200 else self._refused(response, text)

    def _refused(self, response: httpx.Response, text: str) -> Trouble:
        status = response.status_code
        said = shorten(self._redact(_said(text)), _SHOWN_CHARS)
        reason = f"it answered with status {status}" + (f' and "{said}"' if said else "")
        return Trouble(
            reason + self._advice(status),
            again=status >= 500 or status in REPEATED_STATUSES,
            wish=self._settings.pauses.wish(response.headers.get("Retry-After")),
        )

    def _advice(self, status: int) -> str:
        settings = self._settings
        if status in (401, 403) and settings.key is None:
            return f"; no key was sent, because {settings.key_variable} is not set (api_key_env)"
        if status in (401, 403):
            return f"; the key in {settings.key_variable} (api_key_env) is not accepted"
        if status == 404 or 300 <= status < 400:
            return f"; see that base_url and model are right ({settings.url} was asked)"
        return ""

    def _redact(self, text: str) -> str:
        key = self._settings.key
        return text if key is None else key.redact(text)


def _read(attempt: Attempt, read: Callable[[str], R]) -> tuple[R | Trouble, Attempt]:
    """What an attempt is worth, and the attempt with the trouble that its reply turns out to be."""
    if attempt.trouble is not None or attempt.text is None:
        return attempt.trouble or Trouble("nothing came", again=True), attempt
    try:
        return read(attempt.text), attempt
    except BadReplyError as error:
        trouble = Trouble(f"its reply cannot be used: {error}", again=True)
        return trouble, Attempt(attempt.text, trouble, attempt.seconds)


def _times(number: int) -> str:
    return f" (after {number} attempts)" if number > 1 else ""


def _content(text: str) -> str | Trouble:
    """The text of the first choice of a completion."""
    start = shorten(text.strip(), _SHOWN_CHARS)
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return Trouble(f'what it sent is not JSON: "{start}"', again=True)
    match fields:
        case {"choices": [{"finish_reason": "length", **choice}, *_]}:
            return Trouble(
                "its reply was cut at the endpoint's limit of tokens",
                again=True,
                part=_part(choice.get("message")),
            )
        case {"choices": [{"message": {"content": str() as content}}, *_]}:
            return content
        case _:
            return Trouble(f'what it sent holds no message: "{start}"', again=True)


def _part(message: object) -> str | None:
    match message:
        case {"content": str() as content}:
            return content
    return None


def _said(text: str) -> str:
    """A server's own words about an error."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return text.strip()
    match fields:
        case {"error": {"message": str() as message}} | {"error": str() as message}:
            return message
        case _:
            return text.strip()
