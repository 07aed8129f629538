"""What is asked of the model server, seen through before llama-cpp-python's own server reads it.

It would answer what it cannot read with a bare 500, and pass over some of what it does not do. What
it does not offer is refused here, in the form of OpenAI's API.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from secrets import compare_digest
from typing import Any

from llama_cpp.server.types import (
    CreateChatCompletionRequest,
    CreateCompletionRequest,
    CreateEmbeddingRequest,
)
from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.server.refused_values import sentence

AS_TRAINED: Mapping[str, float] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repeat_penalty": 1.0,
}
"""What a request that does not say otherwise is sampled with: the model's own distribution, which
is also what OpenAI's API takes. The server's own defaults sharpen it, and punish repetition."""
_FORMS: Mapping[str, type[BaseModel]] = {
    "/chat/completions": CreateChatCompletionRequest,
    "/completions": CreateCompletionRequest,
    "/embeddings": CreateEmbeddingRequest,
}
"""What the server reads at the addresses that end so."""
_HOTTEST = 100.0
_DEEPEST = 64
"""Brackets within brackets: the server's own readers go down by recursion."""


class RefusedError(Exception):
    """A request that is not answered; ``param`` is the key in it that is the reason."""

    def __init__(
        self, message: str, param: str | None = None, status: int = 400, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.param, self.status, self.code = param, status, code

    def answer(self) -> JSONResponse:
        error = {
            "message": str(self),
            "type": "invalid_request_error",
            "param": self.param,
            "code": self.code,
        }
        return JSONResponse({"error": error}, self.status)


class CheckedRequests:
    """Refuses what the server behind it cannot do, and fills requests up with `AS_TRAINED`.

    ``names`` are those of the models. Who does not bring ``key`` is left to the server to refuse.
    """

    def __init__(self, app: ASGIApp, names: Sequence[str], key: str | None) -> None:
        self._app, self._names, self._key = app, names, key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not self._admits(scope):
            await self._app(scope, receive, send)
            return
        try:
            if "/extras/" in scope["path"]:
                raise RefusedError("This address is not offered.", status=404)
            form = next((f for end, f in _FORMS.items() if scope["path"].endswith(end)), None)
            body = filled(await Request(scope, receive).body(), self._names, form)
        except RefusedError as refused:
            await refused.answer()(scope, receive, send)
            return
        given = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def once() -> Message:
            # After the body a server is asked only whether the client is still there.
            return next(given, None) or await receive()

        await self._app(scope, once, send)

    def _admits(self, scope: Scope) -> bool:
        brought = Headers(scope=scope).get("authorization", "")
        return self._key is None or compare_digest(brought.encode(), f"Bearer {self._key}".encode())


def filled(body: bytes, names: Sequence[str], form: type[BaseModel] | None = None) -> bytes:
    """The request as the server behind gets it, which reads it as a ``form``: without keys that are
    null, which say nothing, and with what is left open. Raises RefusedError."""
    if not body:
        return body
    try:
        request = json.loads(body, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:
        raise RefusedError(f"The request is not JSON: {error}.") from error
    if _is_deeper(request, _DEEPEST):
        raise _too_deep()
    if not isinstance(request, dict):
        raise RefusedError("The request has to be a JSON object.")
    said = {key: value for key, value in request.items() if value is not None}
    if "max_completion_tokens" in said:  # its present name
        said.setdefault("max_tokens", said.pop("max_completion_tokens"))
    _check(said, names)
    request = {**AS_TRAINED, "model": names[0], **said}
    if form is not None:
        _read_as(form, request)
    return json.dumps(request).encode()


def _refuse_constant(name: str) -> float:
    raise RefusedError(f"The request is not JSON: {name} is no number there.")


def _read_as(form: type[BaseModel], request: Mapping[str, Any]) -> None:
    try:
        form.model_validate(request)
    except ValidationError as error:
        fault = error.errors()[0]
        place = ("body", *fault["loc"])
        param = str(fault["loc"][0]) if fault["loc"] else None
        raise RefusedError(sentence({**fault, "loc": place}), param) from error


def _is_of_text(message: object) -> bool:
    """A message that calls a tool has no content."""
    return isinstance(message, dict) and isinstance(message.get("content") or "", str)


def _too_deep() -> RefusedError:
    return RefusedError(f"The request has more than {_DEEPEST} brackets within each other.")


def _is_deeper(value: object, most: int) -> bool:
    level: list[object] = [value]
    for _ in range(most + 1):
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return False
    return True


def _check(said: Mapping[str, Any], names: Sequence[str]) -> None:
    try:
        json.dumps(said, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise RefusedError("The request holds half a character (a lone surrogate).") from error
    temperature = said.get("temperature", 1.0)
    number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    if not number or not 0 <= temperature <= _HOTTEST:
        raise RefusedError(
            f"temperature = {json.dumps(temperature)[:40]} must be a number from 0 to "
            f"{_HOTTEST:g}.",
            "temperature",
        )
    model = said.get("model", names[0])
    if model not in names:
        there = " and ".join(f"`{name}`" for name in names)
        raise RefusedError(
            f"The model {json.dumps(model)} is not here. What is served: {there}.",
            "model",
            404,
            "model_not_found",
        )
    for key in ("grammar", "logit_bias"):  # a wrong one would end the server
        if said.get(key):
            raise RefusedError(f"`{key}` is not offered: leave it out.", key)
    if said.get("max_tokens", 1) == 0:
        raise RefusedError("max_tokens = 0 must be 1 or more.", "max_tokens")
    if "prompt" in said and not (isinstance(said["prompt"], str) and said["prompt"]):
        raise RefusedError("`prompt` must be a text that is not empty.", "prompt")
    messages = said.get("messages", [])
    if not isinstance(messages, list) or not all(map(_is_of_text, messages)):
        raise RefusedError(
            "`messages` must be a list, and the `content` of each message a text.", "messages"
        )
    for key in ("logprobs", "top_logprobs"):
        if said.get(key, False) is not False:
            raise RefusedError(f"Log-probabilities are not offered: leave `{key}` out.", key)
    for key in ("n", "best_of"):
        if said.get(key, 1) != 1:
            raise RefusedError(
                f"A request gets one answer: leave `{key}` out, and ask as often as you want "
                "answers.",
                key,
            )
