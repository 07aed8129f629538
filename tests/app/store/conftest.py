"""A store on SQLite and the same on PostgreSQL, where that is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import psutil
import pytest
from postgres_server import Server, programs, running

from app.store.database import Store


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    folder = programs()
    if folder is None:
        pytest.skip("no PostgreSQL server is installed (Debian's package is postgresql)")
    with running(folder) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path) -> str:
    """Where there is no store yet."""
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    return request.getfixturevalue("postgres").new_database()


@pytest.fixture
def store(url) -> Iterator[Store]:
    with closing(Store.open(url)) as opened:
        yield opened


@pytest.fixture
def file_store(tmp_path) -> Iterator[Store]:
    """On SQLite alone, for what concerns its file."""
    with closing(Store.open(str(tmp_path / "store.db"))) as opened:
        yield opened


@pytest.fixture
def other() -> Iterator[tuple[subprocess.Popen[bytes], dict[str, object]]]:
    """A process that does nothing, with what is stored of it."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    started = psutil.Process(process.pid).create_time()
    yield process, {"pid": process.pid, "process_started_at": started, "host": os.uname().nodename}
    process.kill()
    process.wait()
