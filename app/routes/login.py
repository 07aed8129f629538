"""Logging in with the server's token, and out again."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Form, Request
from fastapi.responses import RedirectResponse, Response

from app.server.pages import PageContext, render
from app.server.security.access import (
    SESSION_SECONDS,
    WRONG_SECONDS,
    Access,
    cookie_name,
)

router = APIRouter()

_OWN_PATH = re.compile(r"/(?![/\\])[^\\\x00-\x20\x7f]*")


def access_of(request: Request) -> Access:
    access: Access = request.app.state.access
    return access


AccessDep = Annotated[Access, Depends(access_of)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginPage(PageContext):
    """``came_for`` is where to go on."""

    came_for: str
    refused: bool = False
    title: str = "Log in"
    section: str = ""


@router.get("/login")
def show_login(request: Request, access: AccessDep, next: str = "/") -> Response:  # noqa: A002
    came_for = own_path(next)
    if not access.needed or request.state.session:
        return RedirectResponse(came_for, 303)
    return render(request, "login.html", LoginPage(came_for=came_for))


@router.post("/login")
async def log_in(
    request: Request,
    access: AccessDep,
    token: Annotated[str, Form(max_length=4096)] = "",
    next: Annotated[str, Form()] = "/",  # noqa: A002
) -> Response:
    came_for = own_path(next)
    if not access.needed:
        return RedirectResponse(came_for, 303)
    if not access.is_token(token.strip()):
        await asyncio.sleep(WRONG_SECONDS)
        return render(request, "login.html", LoginPage(came_for=came_for, refused=True), 401)
    access.close_session(request.state.session)
    answer = RedirectResponse(came_for, 303)
    answer.set_cookie(
        cookie_name(request),
        access.open_session(),
        max_age=SESSION_SECONDS,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return answer


@router.post("/logout")
async def log_out(request: Request, access: AccessDep) -> Response:
    access.close_session(request.state.session)
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(
        cookie_name(request),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return answer


def own_path(wanted: str) -> str:
    """``wanted`` where it is an address on this server, else the first page."""
    return wanted if _OWN_PATH.fullmatch(wanted) else "/"
