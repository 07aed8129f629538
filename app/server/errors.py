"""What is answered where something is wrong: a page for a person, JSON for a program, and never a
traceback."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

from anyio import BrokenResourceError, ClosedResourceError
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.server.pages import PageContext, render
from app.server.refused_values import sentence
from app.store.presence import StoreGoneError
from trainer.errors import RetrogradError

_LOG = logging.getLogger("uvicorn.error")
_DATA = (".json", ".jsonl", ".csv")
_GONE = (
    "The file of the store was deleted, emptied, renamed or replaced while this server had it "
    "open, so what it would show is of no store any more. Put the file back in its place, or end "
    "the server and start it again with the store that it is to show. Runs that were at work "
    "train on, and are recorded in a copy beside the old place, which has “rescued” in its name."
)
_WORDS = {
    404: "There is nothing at this address.",
    405: "This address does not take such requests.",
    413: "The request brings more than this server takes.",
}
"""Where whoever raised the error said no more than its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPage(PageContext):
    status: int
    message: str
    section: str = ""


def add_error_pages(app: FastAPI) -> None:
    app.add_exception_handler(HTTPException, _of_http)
    app.add_exception_handler(RequestValidationError, _of_validation)
    app.add_exception_handler(OperationalError, _of_store)
    app.add_exception_handler(PoolTimeoutError, _of_store)
    app.add_exception_handler(RetrogradError, _of_what_was_asked)
    app.add_exception_handler(OSError, _of_disk)


class Faults:
    """Turns what nobody has caught into an answer, inside of the checks that every answer passes;
    the log gets the traceback."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def send_noted(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, send_noted)
        except Exception as error:
            if started and _reader_has_gone(error):
                return
            if started or scope["type"] != "http":
                raise  # too late for words: the connection is cut, so that nobody takes it as whole
            _LOG.error("A request failed: %s", scope["path"], exc_info=error)
            words = "This is a fault of retrograd itself. The server's log says more."
            await error_response(Request(scope), 500, words)(scope, receive, send)


def _reader_has_gone(error: Exception) -> bool:
    """How a stream of events ends whose reader's connection was reset."""
    if isinstance(error, ExceptionGroup):
        return all(map(_reader_has_gone, error.exceptions))
    return isinstance(error, BrokenResourceError | ClosedResourceError)


def wants_html(request: Request) -> bool:
    """Whether a browser shows the answer, and not a program reads it."""
    return not request.url.path.endswith(_DATA) and "text/html" in request.headers.get("accept", "")


def error_response(
    request: Request, status: int, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    title = HTTPStatus(status).phrase
    if wants_html(request):
        page = ErrorPage(title=title, status=status, message=message)
        answer: Response = render(request, "error.html", page, status)
    else:
        answer = JSONResponse({"status": status, "error": title, "detail": message}, status)
    answer.headers.update(headers or {})
    return answer


def _of_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code in (204, 304):
        return Response(status_code=error.status_code, headers=error.headers)
    said = str(error.detail)
    if said == HTTPStatus(error.status_code).phrase:
        said = _WORDS.get(error.status_code, said)
    return error_response(request, error.status_code, said, error.headers)


def _of_validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return error_response(request, 422, "\n".join(sentence(fault) for fault in error.errors()))


def _of_what_was_asked(request: Request, error: Exception) -> Response:
    """It cannot be done in the present state of things; some errors know a better status."""
    return error_response(request, getattr(error, "status", 409), str(error))


def _of_disk(request: Request, error: Exception) -> Response:
    """Full, not this user's, gone: what the system says helps whoever runs the server."""
    if not isinstance(error, OSError) or not error.strerror:
        raise error
    _LOG.error("A file could not be used: %s", request.url.path, exc_info=error)
    words = f"A file of the server could not be used: {error.strerror}. The server's log says more."
    return error_response(request, 500, words)


def _of_store(request: Request, error: Exception) -> Response:
    """Locked for long, not reached at all, or with all its connections in use."""
    if isinstance(error, StoreGoneError):
        _LOG.error("The store is gone: %s.", error.orig)
        return error_response(request, 503, _GONE)
    _LOG.error("The store did not answer.", exc_info=error)
    words = "The store did not answer. The server's log says why; try again in a moment."
    return error_response(request, 503, words, {"retry-after": "2"})
