"""A page: a handler that returns its context, shown as HTML and, under the same address with
``.json``, as it is."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, ParamSpec, TypeVar

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import AfterValidator, Field
from starlette.convertors import Convertor, register_url_convertor

from app.settings import ServerSettings
from app.store.database import Store
from app.store.values import text

P = ParamSpec("P")

_ID_DIGITS = 15
WholeNumber = Annotated[int, Field(ge=0, lt=10**_ID_DIGITS)]
"""A number of a query that every database takes, and that a script reads without rounding."""
Words = Annotated[str, AfterValidator(text)]
"""Words of a query that every database takes: without NUL."""


class IdConvertor(Convertor[int]):
    """``{run_id:id}`` in the path of a route: there is nothing at the address of a number that no
    database counts to."""

    regex = f"[0-9]{{1,{_ID_DIGITS}}}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("id", IdConvertor())


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContext:
    """What every page has. ``section`` is the entry of the main menu that it belongs to."""

    title: str
    section: str


Page = TypeVar("Page", bound=PageContext)


def store_of(request: Request) -> Store:
    store: Store = request.app.state.store
    return store


def settings_of(request: Request) -> ServerSettings:
    settings: ServerSettings = request.app.state.settings
    return settings


StoreDep = Annotated[Store, Depends(store_of)]
SettingsDep = Annotated[ServerSettings, Depends(settings_of)]


def page(
    router: APIRouter, path: str, template: str, *, twin: str | None = None
) -> Callable[[Callable[P, Page]], Callable[P, Page]]:
    """Serve what the handler returns: at ``path`` in ``template``, at ``twin`` (``path`` with
    ``.json``) as JSON. The handler itself stays what it is, a function to test."""

    def register(handler: Callable[P, Page]) -> Callable[P, Page]:
        def html(request: Request, context: PageContext) -> Response:
            return render(request, template, context)

        def json(_request: Request, context: PageContext) -> Response:
            return JSONResponse(plain(asdict(context)))

        router.get(twin or f"{path}.json", name=f"{handler.__name__}_json")(_with(handler, json))
        router.get(path, response_class=HTMLResponse, name=handler.__name__)(_with(handler, html))
        return handler

    return register


def render(
    request: Request, template: str, context: PageContext, status_code: int = 200
) -> HTMLResponse:
    """``template`` with the fields of ``context``, the ``request`` and the page's own address."""
    names = {field.name: getattr(context, field.name) for field in fields(context)}
    words = request.app.state.templates.get_template(template).render(
        **names,
        request=request,
        csrf_token=getattr(request.state, "csrf_token", ""),
        logged_in=bool(getattr(request.state, "session", "")),
    )
    return HTMLResponse(words, status_code)


def plain(value: Any) -> Any:  # noqa: ANN401 - JSON types have no better name
    """``value`` with null in the place of numbers that JSON has no form for."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(item) for item in value]
        case None | bool() | int() | str():
            return value
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    return str(value)


def _with(
    handler: Callable[..., PageContext], answer: Callable[[Request, PageContext], Response]
) -> Callable[..., Response]:
    """``handler`` as FastAPI calls it: with the request, and returning a response."""
    signature = inspect.signature(handler, eval_str=True)
    takes_request = "request" in signature.parameters
    parameters = list(signature.parameters.values())
    if not takes_request:
        of_request = inspect.Parameter(
            "request", inspect.Parameter.KEYWORD_ONLY, annotation=Request
        )
        parameters.append(of_request)

    @wraps(handler)
    def serve(**given: Any) -> Response:  # noqa: ANN401 - what FastAPI resolved
        request = given["request"] if takes_request else given.pop("request")
        return answer(request, handler(**given))

    serve.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=parameters, return_annotation=Response
    )
    return serve
