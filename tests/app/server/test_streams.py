"""Waiting for news as long as the reader is logged in."""

from __future__ import annotations

import asyncio

import pytest
from fastapi import FastAPI, Request
from pydantic import SecretStr

from app.server import streams
from app.server.security.access import Access
from app.server.streams import next_for


@pytest.fixture
def reader(monkeypatch):
    """The request of one who is logged in, and the end of the session."""
    monkeypatch.setattr(streams, "CHECK_SECONDS", 0.05)
    app = FastAPI()
    app.state.access = access = Access(SecretStr("a-long-token-of-the-operator"))
    session = access.open_session()
    request = Request({"type": "http", "app": app, "state": {"session": session, "bearer": False}})
    return request, lambda: access.close_session(session)


def test_news_are_waited_for_beyond_the_looks_at_the_login(reader):
    request, _ = reader

    async def drive():
        came = asyncio.Event()
        asyncio.get_running_loop().call_later(0.2, came.set)
        return await next_for(request, came.wait)

    assert asyncio.run(drive()) is True


def test_where_nothing_comes_the_logout_ends_it(reader):
    request, log_out = reader

    async def drive():
        asyncio.get_running_loop().call_later(0.1, log_out)
        return await asyncio.wait_for(next_for(request, asyncio.Event().wait), 5)

    assert asyncio.run(drive()) is None


def test_what_comes_after_the_logout_is_not_told(reader):
    request, log_out = reader

    async def news():
        log_out()
        return "of another one"

    assert asyncio.run(next_for(request, news)) is None
