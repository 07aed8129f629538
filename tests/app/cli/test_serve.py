"""``retrograd serve`` as an operator starts, ends and kills it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from desk import prepare_workspace, slow_text
from web import page_headers

OPEN = ("queued", "starting", "running", "stopping")


class Operator:
    """Starts servers over one store, and knows its runs."""

    def __init__(self, command: Path, folder: Path) -> None:
        self.command, self.folder = command, folder
        self.workspace = prepare_workspace(folder / "workspace")
        self.store = folder / "retrograd.db"
        self.servers: list[subprocess.Popen[str]] = []
        self.clients: list[httpx.Client] = []

    def serve(self, *options: str) -> tuple[subprocess.Popen[str], httpx.Client]:
        arguments = ["serve", "--port", "0", "--workspace", str(self.workspace)]
        server = subprocess.Popen(
            [str(self.command), *arguments, "--store", str(self.store), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.servers.append(server)
        line = server.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert found, server.stderr.read()
        self.clients.append(httpx.Client(base_url=found[0], timeout=30))
        return server, self.clients[-1]

    def start_run(self, client: httpx.Client, text: str) -> str:
        """The address of a run that was pasted and started, without waiting for its checks."""
        headers = page_headers(client, "/runs/new")
        draft = client.post("/runs/new", data={"toml": text}, headers=headers).headers["location"]
        answer = client.post(f"{draft}/start", headers=headers)
        assert answer.status_code == 303, answer.text
        return answer.headers["location"]

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for server in self.servers:
            if server.poll() is None:
                server.send_signal(signal.SIGINT)
            server.wait(20)
            server.stdout.close()
            server.stderr.close()


@pytest.fixture
def operator(retrograd_path: Path, tmp_path: Path) -> Iterator[Operator]:
    operator = Operator(retrograd_path, tmp_path)
    yield operator
    operator.close()


def run_at(client: httpx.Client, address: str) -> dict[str, Any]:
    told = client.get(f"{address}.json").json()
    return told["run"]


def wait(condition: Callable[[], object], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.full
def test_runs_go_on_when_the_server_is_killed_and_the_next_one_finds_them(operator):
    server, client = operator.serve()
    address = operator.start_run(client, slow_text())
    wait(lambda: run_at(client, address)["completed"] >= 1)
    server.send_signal(signal.SIGKILL)
    server.wait(10)

    server, client = operator.serve()
    seen = run_at(client, address)["completed"]
    wait(lambda: run_at(client, address)["completed"] > seen)
    assert run_at(client, address)["status"] == "running"

    client.post(f"{address}/stop", headers=page_headers(client, "/runs/new"))
    assert run_at(client, address)["status"] == "stopping"
    wait(lambda: run_at(client, address)["status"] not in OPEN)
    run = run_at(client, address)
    assert (run["status"], run["message"]) == (
        "stopped",
        f"stopped after {run['completed']} updates",
    )

    server.send_signal(signal.SIGINT)
    assert server.wait(20) == 0
    assert server.stderr.read() == ""


@pytest.mark.full
def test_of_two_servers_on_one_store_the_other_goes_on_when_one_is_killed(operator):
    first, client = operator.serve()
    _, other = operator.serve()
    address = operator.start_run(client, slow_text())
    waiting = operator.start_run(other, slow_text(1))
    wait(lambda: run_at(client, address)["completed"] >= 1)
    first.send_signal(signal.SIGKILL)
    first.wait(10)

    seen = run_at(other, address)["completed"]
    wait(lambda: run_at(other, address)["completed"] > seen)
    assert run_at(other, waiting)["status"] == "queued", "one at a time, whoever started it"
    headers = page_headers(other, "/runs/new")
    other.post(f"{address}/stop", headers=headers)
    wait(lambda: run_at(other, address)["status"] == "stopped")
    wait(lambda: run_at(other, waiting)["status"] == "completed")


@pytest.mark.full
def test_the_end_of_a_server_says_what_goes_on(operator):
    server, client = operator.serve()
    address = operator.start_run(client, slow_text())
    wait(lambda: run_at(client, address)["completed"] >= 1)
    with client.stream("GET", f"{address}/live") as stream:
        assert stream.status_code == 200
        asked = time.monotonic()
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0
        assert time.monotonic() - asked < 10, "an open stream holds nothing up"
    assert "run goes on" in server.stderr.read()

    _, client = operator.serve()
    run = run_at(client, address)
    assert run["status"] == "running"
    headers = page_headers(client, "/runs/new")
    client.post(f"{address}/stop", headers=headers)
    client.post(f"{address}/stop", headers=headers)
    wait(lambda: run_at(client, address)["status"] not in OPEN)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "0.0.0.0"], "Give a token"),
        (["--token-file", "nowhere.txt"], "cannot be read from nowhere.txt"),
        (["--token-file", "empty.txt"], "must hold the token, alone and on one line"),
        (["--token-file", "short.txt"], "It needs 22 or more"),
        (["--workspace", "nowhere"], "no such folder"),
    ],
)
def test_what_is_refused_at_once(retrograd, tmp_path, options, words):
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "short.txt").write_text("hunter2\n")
    done = retrograd("serve", "--port", "0", "--store", tmp_path / "s.db", *options, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr


def test_a_taken_port_is_named_with_the_way_out(retrograd, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = retrograd("serve", "--port", str(port), "--store", tmp_path / "s.db")
    assert done.returncode == 1
    assert done.stderr == (
        f"Port {port} of 127.0.0.1 is taken. Name another one with --port, or 0 for any free one.\n"
    )


def test_the_token_is_for_those_who_log_in_and_not_for_the_runs_programs(operator, tmp_path):
    (tmp_path / "token.txt").write_text("correct horse battery staple\n")
    program = operator.workspace / "tell.py"
    told = tmp_path / "environment.txt"
    program.write_text(f"import os\nopen({str(told)!r}, 'w').write(repr(dict(os.environ)))\n")
    os.environ["RETROGRAD_TOKEN"] = "correct horse battery staple"
    try:
        _, client = operator.serve("--allow-command", "python3")
    finally:
        del os.environ["RETROGRAD_TOKEN"]
    assert client.get("/runs/new.json").status_code == 401
    client.headers["authorization"] = "Bearer correct horse battery staple"
    text = slow_text().replace("slow.py", "tell.py")
    client.post("/runs/new", data={"toml": text})
    wait(told.exists)
    wait(lambda: told.read_text().endswith("}"))
    assert "correct horse battery staple" not in told.read_text()
    assert client.get("/runs/new/1.json").json()["can_start"] in (True, False)
