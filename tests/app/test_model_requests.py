"""What reaches the server behind, and what is refused before."""

from __future__ import annotations

import asyncio
import json

import pytest
from llama_cpp.server.types import CreateChatCompletionRequest

from app.model_requests import CheckedRequests, RefusedError, filled

NAMES = ["base", "adapter"]


@pytest.mark.parametrize(
    ("sent", "passed"),
    [
        ({"top_p": 0.5}, {"top_p": 0.5, "temperature": 1.0, "top_k": 0, "repeat_penalty": 1.0}),
        ({"temperature": None, "top_k": None}, {"temperature": 1.0, "top_k": 0, "min_p": 0.0}),
        ({"model": "adapter", "logprobs": False, "n": 1}, {"model": "adapter", "n": 1}),
        ({}, {"model": "base"}),
        ({"max_completion_tokens": 2}, {"max_tokens": 2}),
        ({"max_completion_tokens": 2, "max_tokens": 3}, {"max_tokens": 3}),
    ],
)
def test_what_a_request_leaves_open_is_as_in_training(sent, passed):
    assert passed.items() <= json.loads(filled(json.dumps(sent).encode(), NAMES)).items()


def test_a_null_is_left_out_and_a_request_without_a_body_passes():
    assert "stop" not in json.loads(filled(b'{"stop": null}', NAMES))
    assert filled(b"", NAMES) == b""


@pytest.mark.parametrize(
    ("sent", "param", "words"),
    [
        (b"{", None, "is not JSON"),
        (b'"\xff"', None, "is not JSON"),
        (b"[1]", None, "has to be a JSON object"),
        (b"[" * 100_000, None, "64 brackets"),
        (b'{"a": ' + b"[" * 80 + b"]" * 80 + b"}", None, "64 brackets"),
        (b'{"logprobs": true}', "logprobs", "not offered"),
        (b'{"logprobs": 0}', "logprobs", "not offered"),
        (b'{"top_logprobs": 3}', "top_logprobs", "not offered"),
        (b'{"n": 3}', "n", "one answer"),
        (b'{"grammar": "root ::= ("}', "grammar", "not offered"),
        (b'{"logit_bias": {"99999999": 5}}', "logit_bias", "not offered"),
        (b'{"max_tokens": 0}', "max_tokens", "1 or more"),
        (b'{"prompt": ["a", "b"]}', "prompt", "a text that is not empty"),
        (b'{"prompt": ""}', "prompt", "a text that is not empty"),
        (
            b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
            "messages",
            "text",
        ),
        (b'{"messages": "hi"}', "messages", "must be a list"),
        (b'{"temperature": "warm"}', "temperature", 'temperature = "warm" must be a number from 0'),
        (b'{"temperature": -1}', "temperature", "temperature = -1 must be"),
        (b'{"temperature": 1e999}', "temperature", "temperature = Infinity must be"),
        (b'{"temperature": NaN}', None, "NaN is no number there"),
        (b'{"prompt": "\\ud800"}', None, "lone surrogate"),
        (b'{"best_of": 2}', "best_of", "one answer"),
    ],
)
def test_what_cannot_be_done_is_refused_in_words(sent, param, words):
    with pytest.raises(RefusedError, match=words) as caught:
        filled(sent, NAMES)
    assert (caught.value.param, caught.value.status) == (param, 400)


@pytest.mark.parametrize(
    ("sent", "param", "words"),
    [
        ({"max_tokens": "many"}, "max_tokens", r"max_tokens = many must be a whole number\."),
        ({"top_p": 1.5}, "top_p", r"top_p = 1.5 must be 1.0 or less\."),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(sent, param, words):
    messages = {"messages": [{"role": "user", "content": "x"}]}
    with pytest.raises(RefusedError, match=words) as caught:
        filled(json.dumps(messages | sent).encode(), NAMES, CreateChatCompletionRequest)
    assert caught.value.param == param


def test_an_unknown_model_is_not_answered_by_another_one():
    with pytest.raises(
        RefusedError, match=r'"gpt" is not here\. What is served: `base` and `adapter`'
    ):
        filled(b'{"model": "gpt"}', NAMES)
    with pytest.raises(RefusedError, match=r"The model 5 is not here"):
        filled(b'{"model": 5}', NAMES)


@pytest.mark.parametrize(("key", "reaches"), [(None, False), ("k", True)])
def test_a_body_in_parts_is_read_whole_and_strangers_are_left_to_the_server(key, reaches):
    """Who has no key learns nothing of what is served."""
    got, sent = [], []

    async def inner(scope, receive, send):
        got.append(await receive())

    parts = [
        {"type": "http.request", "body": b'{"mod', "more_body": True},
        {"type": "http.request", "body": b'el": "gpt"}', "more_body": False},
    ]

    async def receive():
        return parts.pop(0)

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "headers": [], "path": "/v1/chat/completions"}
    asyncio.run(CheckedRequests(inner, NAMES, key)(scope, receive, send))
    assert bool(got) is reaches
    if not reaches:
        assert sent[0]["status"] == 404
        error = json.loads(sent[1]["body"])["error"]
        assert (error["code"], error["type"]) == ("model_not_found", "invalid_request_error")
