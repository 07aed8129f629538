"""The pages: a module for each, with its router, the context of its template, and its queries'
results put in order for the eye."""

from __future__ import annotations

from fastapi import APIRouter

ROUTERS: tuple[APIRouter, ...] = ()
"""All of them, in the order in which their addresses are tried."""
