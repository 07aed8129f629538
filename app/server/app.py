"""The application: its parts put together."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.staticfiles import StaticFiles

from app.routes import ROUTERS
from app.server.settings import ServerSettings
from app.server.templating import environment, static_folder
from app.store.database import Store


def create_app(settings: ServerSettings, store: Store) -> FastAPI:
    """The web application over ``store``, which stays the caller's to close."""
    app = FastAPI(title="retrograd", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.settings = settings
    app.state.store = store
    app.state.templates = environment()
    for router in ROUTERS:
        app.include_router(router)
    app.mount("/static", StaticFiles(directory=static_folder()), name="static")
    return app
