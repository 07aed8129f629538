"""The application: its parts put together."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.staticfiles import StaticFiles

from app.chat.desk import Desk
from app.routes import ROUTERS
from app.server.errors import add_error_pages
from app.server.hints import Hints
from app.server.security.access import Access, refuse_short
from app.server.security.checks import checks
from app.server.security.hosts import refuse_open_door
from app.server.templating import environment, static_folder
from app.settings import ServerSettings
from app.store.database import Store
from app.store.queries.heat import Heats
from app.store.queries.series import AllSeries


def create_app(settings: ServerSettings, store: Store) -> FastAPI:
    """The web application over ``store``, which stays the caller's to close.

    Raises ConfigError where it would be open to other machines without a token, and for a short
    one.
    """
    refuse_open_door(settings)
    refuse_short(settings.token)
    access = Access(settings.token)
    app = FastAPI(
        title="retrograd",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        middleware=checks(settings, access),
    )
    add_error_pages(app)
    app.state.settings = settings
    app.state.access = access
    app.state.store = store
    app.state.heats = Heats()
    app.state.series = AllSeries()
    app.state.hints = Hints(store)
    app.state.desk = Desk()
    app.state.templates = environment()
    for router in ROUTERS:
        app.include_router(router)
    app.mount("/static", StaticFiles(directory=static_folder()), name="static")
    return app
