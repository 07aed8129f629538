from __future__ import annotations

import re

import pytest
from fastapi import APIRouter
from fastapi.responses import Response

router = APIRouter()


@router.get("/broken")
def broken() -> None:
    raise ZeroDivisionError("a secret of the server")


@router.get("/kept")
def kept() -> Response:
    return Response("x", headers={"cache-control": "private, no-cache"})


@pytest.mark.parametrize("path", ["/nowhere", "/login", "/broken", "/static/css/site.css", "/kept"])
def test_every_response_has_them(serve, path):
    headers = serve(router).get(path, headers={"accept": "text/html"}).headers
    policy = headers["content-security-policy"]
    assert "default-src 'self'" in policy
    for part in ("frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'"):
        assert part in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cross-origin-opener-policy"] == "same-origin"


def test_pages_are_not_stored_and_versioned_files_are_kept(serve):
    client = serve(router)
    page = client.get("/nowhere", headers={"accept": "text/html"})
    assert page.headers["cache-control"] == "no-store"
    assert client.get("/kept").headers["cache-control"] == "private, no-cache"
    versioned = re.search(r'href="(/static/css/site\.css\?v=\w+)"', page.text)[1]
    assert "immutable" in client.get(versioned).headers["cache-control"]
    assert client.get("/static/css/site.css").headers["cache-control"] == "no-cache"
    assert client.get("/static/none.css?v=1").headers["cache-control"] == "no-store"
