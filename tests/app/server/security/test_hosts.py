from __future__ import annotations

import socket
import sys

import httpx
import pytest
from starlette.datastructures import Headers
from web import served

from app.server.security.hosts import host_name, is_loopback, known_hosts, refuse_open_door
from app.settings import ServerSettings
from app.web import create_app
from trainer.errors import ConfigError


def test_names_of_this_machine_are_answered(serve):
    client = serve()
    port = client.base_url.port
    for name in ("localhost", "LOCALHOST", "127.0.0.1", "[::1]"):
        assert client.get("/login", headers={"host": f"{name}:{port}"}).status_code == 303
    # Through a tunnel the port is another one.
    assert client.get("/login", headers={"host": "localhost:9000"}).status_code == 303


@pytest.mark.parametrize(
    "name", ["evil.example", "localhost.evil.example", "192.168.1.9", "127.0.0.1.nip.io:80"]
)
def test_a_stranger_s_name_is_refused_on_every_address(serve, name):
    client = serve()
    for path in ("/", "/login", "/static/css/site.css", "/runs/1.json"):
        answer = client.get(path, headers={"host": name})
        assert answer.status_code == 421
        assert "--allowed-host" in answer.text
        assert answer.headers["content-type"].startswith("text/plain")
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_name_that_the_operator_has_allowed_is_answered(serve):
    client = serve(allowed_hosts=("Box.lan",))
    assert client.get("/login", headers={"host": "box.lan:8765"}).status_code == 303
    assert client.get("/login", headers={"host": "other.lan"}).status_code == 421


def raw(client, request: str) -> str:
    """The status line that the server sends for exactly these words."""
    with socket.create_connection((client.base_url.host, client.base_url.port), timeout=10) as peer:
        peer.sendall(request.encode())
        return peer.recv(4096).decode().partition("\r\n")[0]


@pytest.mark.parametrize(
    "hosts",
    ["", "Host: localhost\r\nHost: evil.example\r\n", "Host: local host\r\n", "Host: a@b\r\n"],
)
def test_no_host_two_of_them_and_nonsense_are_refused(serve, hosts):
    said = raw(serve(), f"GET /login HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n")
    assert said.split(" ")[1] == "400"


@pytest.mark.skipif(sys.platform != "linux", reason="has one address of loopback")
def test_the_address_that_was_connected_to_is_a_name_of_the_server(store):
    app = create_app(
        ServerSettings(host="0.0.0.0", token="a-token-of-some-length-for-tests"), store
    )
    with served(app, "127.0.0.2") as address:
        assert httpx.get(f"{address}/login").status_code == 200
        other = httpx.get(f"{address}/login", headers={"host": "127.0.0.3"})
        assert other.status_code == 421


def test_the_name_is_what_stands_before_the_port():
    assert host_name(Headers({"host": "Box.lan:80"})) == "box.lan"
    assert host_name(Headers({"host": "[2001:DB8::1]:80"})) == "2001:db8::1"
    assert host_name(Headers({"host": "box.lan:port"})) is None


def test_an_address_that_stands_for_all_is_no_name():
    assert known_hosts(ServerSettings(host="0.0.0.0")) == known_hosts(ServerSettings())
    assert "192.168.1.5" in known_hosts(ServerSettings(host="192.168.1.5"))


def test_without_a_token_only_this_machine_is_served():
    for host in ("127.0.0.1", "localhost", "::1", "127.8.8.8"):
        assert is_loopback(host)
        refuse_open_door(ServerSettings(host=host))
    for host in ("0.0.0.0", "::", "192.168.1.5", "box.lan"):
        with pytest.raises(ConfigError, match="--token-file"):
            refuse_open_door(ServerSettings(host=host))
        refuse_open_door(ServerSettings(host=host, token="a-token-of-some-length-for-tests"))
