"""A queue that really runs what is in it, and databases for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from desk import Desk, prepare_workspace
from postgres_server import Server, programs, running

from app.store.database import Store


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk.open(tmp_path, prepare_workspace(tmp_path / "workspace"))
    yield desk
    desk.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    folder = programs()
    if folder is None:
        pytest.skip("no PostgreSQL server is installed (Debian's package is postgresql)")
    with running(folder) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    postgresql = request.param == "postgresql"
    url = request.getfixturevalue("postgres").new_database() if postgresql else None
    with closing(Store.open(url or str(tmp_path / "store.db"))) as opened:
        yield opened
