"""A PostgreSQL server of the tests' own, in a folder that goes with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

_SETTINGS = {
    "listen_addresses": "",  # a socket in its own folder, and no port
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
}


def programs() -> Path | None:
    """The folder with ``initdb`` and ``pg_ctl``, where a server is installed."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return folders[-1].parent if folders else None


@dataclass(frozen=True)
class Server:
    folder: Path

    def new_database(self) -> str:
        """The URL of an empty one."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(f"host={self.folder} user=postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return f"postgresql+psycopg://postgres@/{name}?host={self.folder}"


@contextmanager
def running(folder_of_programs: Path) -> Iterator[Server]:
    # A socket's path may have about a hundred characters, fewer than pytest's folders have.
    folder = Path(tempfile.mkdtemp(prefix="retrograd-pg-"))
    data = folder / "data"
    options = " ".join(f"-c {key}={value}" for key, value in _SETTINGS.items())
    options += f" -c unix_socket_directories={folder}"
    control = [str(folder_of_programs / "pg_ctl"), "-D", str(data), "-w", "-s"]
    try:
        if os.geteuid() == 0:  # as whom a server refuses to run
            shutil.chown(folder, "postgres", "postgres")
        initdb = [str(folder_of_programs / "initdb"), "-D", str(data), "-U", "postgres"]
        _run([*initdb, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"])
        _run([*control, "-l", str(folder / "log"), "-o", options, "start"])
        try:
            yield Server(folder)
        finally:
            _run([*control, "-m", "immediate", "stop"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(command: list[str]) -> None:
    if os.geteuid() == 0:
        command = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", *command]
    # Not through pipes, which the server would hold open.
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(command, stdout=output, stderr=output, check=False, timeout=120)
        output.seek(0)
        assert done.returncode == 0, output.read().decode(errors="replace")
