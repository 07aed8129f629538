from __future__ import annotations

from typing import Annotated

import httpx
import pytest
from fastapi import APIRouter, File, Form, UploadFile
from web import page_headers

router = APIRouter()


@router.post("/take")
def take(words: Annotated[str, Form()] = "") -> dict[str, str]:
    return {"took": words}


@router.delete("/take")
def drop() -> dict[str, bool]:
    return {"dropped": True}


@router.post("/upload")
def upload(config: Annotated[UploadFile, File()], csrf_token: Annotated[str, Form()] = "") -> int:
    return len(config.file.read())


@router.get("/page")
def page() -> dict[str, str]:
    return {"read": "yes"}


@pytest.fixture
def client(serve) -> httpx.Client:
    return serve(router)


@pytest.fixture
def headers(client) -> dict[str, str]:
    return page_headers(client, "/nowhere")


def test_a_form_of_this_site_is_taken(client, headers):
    answer = client.post("/take", data={"words": "yes"}, headers=headers)
    assert answer.json() == {"took": "yes"}


def test_the_token_may_be_a_field_of_the_form(client, headers):
    token = headers.pop("x-csrf-token")
    fields = {"words": "a & ü", "csrf_token": token}
    assert client.post("/take", data=fields, headers=headers).json() == {"took": "a & ü"}
    fields["csrf_token"] = token[:-1] + "x"
    assert client.post("/take", data=fields, headers=headers).status_code == 403


@pytest.mark.parametrize(
    "origin",
    [None, "null", "https://evil.example", "http://localhost", "http://127.0.0.1", "ftp://{own}"],
)
def test_another_origin_and_none_are_refused(client, headers, origin):
    own = headers.pop("origin").removeprefix("http://")
    if origin is not None:
        headers["origin"] = origin.format(own=own)
    for method in ("POST", "DELETE", "PUT", "PATCH"):
        assert client.request(method, "/take", headers=headers).status_code == 403


def test_a_referer_does_not_stand_for_an_origin(client, headers):
    headers["referer"] = headers.pop("origin") + "/page"
    assert client.post("/take", headers=headers).status_code == 403


def test_two_origins_are_none(client, headers):
    both = [*headers.items(), ("origin", "http://evil.example")]
    assert client.post("/take", headers=both).status_code == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_the_browser_says_of_the_sender_counts_too(client, headers, site):
    assert client.post("/take", headers=headers | {"sec-fetch-site": site}).status_code == 403
    for own in ("same-origin", "none"):
        assert client.post("/take", headers=headers | {"sec-fetch-site": own}).status_code == 200


def test_without_the_token_nothing_changes(client, headers):
    del headers["x-csrf-token"]
    assert client.post("/take", data={"words": "x"}, headers=headers).status_code == 403
    assert client.request("DELETE", "/take", headers=headers).status_code == 403
    answer = client.post("/take", json={"csrf_token": "x"}, headers=headers)
    assert answer.status_code == 403
    assert "csrf_token" in answer.json()["detail"]


def test_the_token_of_another_server_is_refused_with_the_way_out(client, headers, serve):
    other = page_headers(serve(), "/nowhere")["x-csrf-token"]
    answer = client.post("/take", headers=headers | {"x-csrf-token": other})
    assert answer.status_code == 403
    assert "Reload" in answer.json()["detail"]


def multipart(*parts: tuple[str, str, bytes]) -> tuple[bytes, dict[str, str]]:
    """A form whose parts stand in this order; those with a file name are files."""
    lines = []
    for name, filename, content in parts:
        file = f'; filename="{filename}"' if filename else ""
        head = f'--bound\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
        lines.append(head.encode() + content + b"\r\n")
    kind = {"content-type": "multipart/form-data; boundary=bound"}
    return b"".join(lines) + b"--bound--\r\n", kind


def test_in_a_form_of_files_the_token_comes_first(client, headers):
    token = headers.pop("x-csrf-token").encode()
    content = bytes(range(256)) * 4096
    first, kind = multipart(("csrf_token", "", token), ("config", "run.toml", content))
    answer = client.post("/upload", content=first, headers=headers | kind)
    assert answer.json() == len(content)
    last, kind = multipart(("config", "run.toml", content), ("csrf_token", "", token))
    assert client.post("/upload", content=last, headers=headers | kind).status_code == 403


def test_a_token_in_a_file_is_no_token(client, headers):
    token = headers.pop("x-csrf-token").encode()
    body, kind = multipart(("csrf_token", "a", token), ("config", "run.toml", b"x"))
    assert client.post("/upload", content=body, headers=headers | kind).status_code == 403


def test_an_upload_without_token_is_told_why_and_not_cut_off(client, headers):
    del headers["x-csrf-token"]

    def pieces():
        yield b'--bound\r\nContent-Disposition: form-data; name="config"; filename="a"\r\n\r\n'
        for _ in range(400):
            yield b"x" * 65536

    kind = {"content-type": "multipart/form-data; boundary=bound"}
    answer = client.post("/upload", content=pieces(), headers=headers | kind)
    assert answer.status_code == 403
    assert "before all files" in answer.json()["detail"]


def test_reading_is_open_to_links_and_closed_to_scripts_of_other_sites(client):
    elsewhere = {"sec-fetch-site": "cross-site"}
    assert client.get("/page", headers=elsewhere | {"sec-fetch-mode": "navigate"}).json()
    for mode in ("no-cors", "cors", "same-origin"):
        answer = client.get("/page", headers=elsewhere | {"sec-fetch-mode": mode})
        assert answer.status_code == 403


def test_a_proxy_that_ends_tls_is_believed_in_the_scheme(client, headers):
    own = headers["origin"].removeprefix("http")
    assert client.post("/take", headers=headers | {"origin": f"https{own}"}).status_code == 200
    forwarded = headers | {"x-forwarded-proto": "https"}
    assert client.post("/take", headers=forwarded).status_code == 403
    assert client.post("/take", headers=forwarded | {"origin": f"https{own}"}).status_code == 200
