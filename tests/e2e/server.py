"""`retrograd serve` as a person starts it: a process of its own, and its workers' parent."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from app.store.database import Store
from e2e.waiting import eventually

RETROGRAD = Path(sys.executable).with_name("retrograd")
_MARK = "RETROGRAD_DATA_FOLDER"
"""No two servers have the same, and what they start inherits it."""


@dataclass
class Server:
    """A server over a store of its own in ``folder``. It keeps its port when it starts again."""

    folder: Path
    runs_at_once: int = 1
    port: int = 0
    token: str = ""
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def store_path(self) -> Path:
        return self.folder / "store.db"

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def environment(self) -> dict[str, str]:
        """Small threads, so that a page answers while a worker trains on the same two cores."""
        return {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "RETROGRAD_STORE": str(self.store_path),
            _MARK: str(self.folder / "data"),
            "RETROGRAD_MAX_CONCURRENT_RUNS": str(self.runs_at_once),
            **({"RETROGRAD_TOKEN": self.token} if self.token else {}),
        }

    def __post_init__(self) -> None:
        self.port = self.port or _free_port()

    def start(self) -> Server:
        self.workspace.mkdir(parents=True, exist_ok=True)
        command = [str(RETROGRAD), "serve", "--port", str(self.port)]
        command += ["--workspace", str(self.workspace), "--store", str(self.store_path)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                env=self.environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        try:
            eventually(self._answers, f"an answer from the server (see {self.log})")
        except BaseException:
            self.stop()
            raise
        return self

    def kill(self) -> None:
        """As by a crash: nothing is told to it."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process = None

    def interrupt(self) -> None:
        """Ctrl-C alone, and nothing is done about what goes on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=20)
        self.process = None

    def stop(self) -> None:
        """As by Ctrl-C. Runs outlive their server, so those that are still at work end first."""
        self._end_workers()
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.kill()
        self._end_workers()  # one may have been about to start
        self.process = None

    def _end_workers(self) -> None:
        for worker in self.workers():
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()
        eventually(lambda: not self.workers(), "the end of all runs of this server")

    def resident_bytes(self) -> int:
        assert self.process is not None
        return psutil.Process(self.process.pid).memory_info().rss

    def connections(self) -> int:
        """Those that others hold open to this server."""
        assert self.process is not None
        kinds = psutil.Process(self.process.pid).net_connections("tcp")
        return sum(c.status == psutil.CONN_ESTABLISHED for c in kinds)

    def workers(self) -> list[psutil.Process]:
        """Processes of its runs, reward programs too, whoever their parent is by now."""
        return [process for process in psutil.process_iter() if self._is_worker(process)]

    def _is_worker(self, process: psutil.Process) -> bool:
        if self.process is not None and process.pid == self.process.pid:
            return False
        try:
            ours = process.environ().get(_MARK) == self.environment[_MARK]
            return ours and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.AccessDenied, psutil.NoSuchProcess):
            return False

    def write_ahead_bytes(self) -> int:
        log = self.store_path.with_name(self.store_path.name + "-wal")
        return log.stat().st_size if log.exists() else 0

    def store(self) -> Store:
        """The same store, opened here; the caller closes it."""
        return Store.open(str(self.store_path))

    def train(self, config: Path, *options: str) -> subprocess.CompletedProcess[str]:
        """`retrograd train` in a terminal, into this store."""
        command = [str(RETROGRAD), "train", str(config), *options]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=120, check=False
        )

    def _answers(self) -> bool:
        assert self.process is not None
        ended = self.process.poll()
        assert ended is None, f"the server ended with {ended}:\n{self.log.read_text()[-3000:]}"
        try:
            return httpx.get(f"{self.url}/live.json", timeout=5).status_code in (200, 401)
        except httpx.TransportError:
            return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])
