"""The pages: a module for each, with its router, the context of its template, and its queries'
results put in order for the eye."""

from __future__ import annotations

from fastapi import APIRouter

from app.routes import (
    actions,
    answers,
    artifacts,
    chat,
    compare,
    config,
    journal,
    live,
    login,
    metrics,
    new_run,
    overview,
    runs,
    trajectories,
)

ROUTERS: tuple[APIRouter, ...] = (
    login.router,
    new_run.router,
    actions.router,
    metrics.router,
    live.router,
    overview.router,
    runs.router,
    config.router,
    journal.router,
    artifacts.router,
    compare.router,
    chat.router,
    trajectories.router,
    answers.router,
)
"""All of them, in the order in which their addresses are tried."""
