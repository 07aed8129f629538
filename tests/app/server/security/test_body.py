from __future__ import annotations

from typing import Annotated

import httpx
import pytest
from fastapi import APIRouter, Form, Request
from web import page_headers

from app.server.security.body import PLAIN_BYTES

router = APIRouter()


@router.post("/form")
def take_form(words: Annotated[str, Form()] = "") -> int:
    return len(words)


@router.post("/read")
async def read(request: Request) -> int:
    return len(await request.body())


@pytest.fixture
def client(serve) -> httpx.Client:
    return serve(router, max_upload_bytes=3 * PLAIN_BYTES)


@pytest.fixture
def headers(client) -> dict[str, str]:
    return page_headers(client, "/nowhere")


def in_pieces(total: int):
    """A body of which no length is announced."""
    for start in range(0, total, 65536):
        yield b"x" * min(65536, total - start)


@pytest.mark.parametrize("path", ["/form", "/read", "/login", "/nowhere"])
def test_a_body_that_says_it_is_too_large_is_not_read(client, headers, path):
    body = b"x" * (PLAIN_BYTES + 1)
    answer = client.post(path, content=body, headers=headers | {"accept": "text/html"})
    assert answer.status_code == 413
    assert "at most 1.0 MiB" in answer.text
    assert "<title>" in answer.text


def test_a_body_that_turns_out_to_be_too_large_is_cut_off(client, headers):
    assert client.post("/read", content=in_pieces(PLAIN_BYTES), headers=headers).json() == (
        PLAIN_BYTES
    )
    answer = client.post("/read", content=in_pieces(PLAIN_BYTES + 1), headers=headers)
    assert answer.status_code == 413


def test_so_is_a_form_whose_token_is_a_field(client, headers):
    del headers["x-csrf-token"]
    kind = {"content-type": "application/x-www-form-urlencoded"}
    body = in_pieces(PLAIN_BYTES + 1)
    assert client.post("/form", content=body, headers=headers | kind).status_code == 413


def test_only_a_form_of_files_may_be_as_large_as_an_upload(client, headers):
    kind = {"content-type": "multipart/form-data; boundary=b"}
    within = in_pieces(2 * PLAIN_BYTES)
    answer = client.post("/read", content=within, headers=headers | kind)
    assert answer.json() == 2 * PLAIN_BYTES
    beyond = in_pieces(5 * PLAIN_BYTES)
    assert client.post("/read", content=beyond, headers=headers | kind).status_code == 413


def test_too_many_files_are_refused_with_what_to_do(client, headers):
    answer = client.post("/read", files={"a": b"x" * (5 * PLAIN_BYTES)}, headers=headers)
    assert answer.status_code == 413
    assert "more than 3 MiB together" in answer.text
    assert "into the workspace folder" in answer.text
    assert "--max-upload-mib" in answer.text


def test_the_connection_serves_on_afterwards(client, headers):
    client.post("/read", content=b"x" * (PLAIN_BYTES + 1), headers=headers)
    assert client.post("/read", content=b"xyz", headers=headers).json() == 3
