from __future__ import annotations

import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from http.cookies import SimpleCookie
from pathlib import Path

import httpx
import pytest
from fastapi import APIRouter
from pydantic import SecretStr
from web import page_headers

from app.server.security.access import SESSION_SECONDS, WRONG_SECONDS, Access, refuse_short
from trainer.errors import ConfigError

TOKEN = "a-long-token-of-the-operator"
HTML = {"accept": "text/html"}
router = APIRouter()


@router.get("/inside")
def inside() -> dict[str, str]:
    return {"inside": "yes"}


@router.post("/inside")
def change() -> dict[str, str]:
    return {"changed": "yes"}


@pytest.fixture
def client(serve) -> httpx.Client:
    """Of a server with a token, not logged in."""
    client = serve(router, token=TOKEN)
    client.cookies.clear()
    return client


def log_in(client: httpx.Client, token: str = TOKEN, came_for: str = "/inside") -> httpx.Response:
    headers = HTML | page_headers(client, "/login")
    return client.post("/login", data={"token": token, "next": came_for}, headers=headers)


def test_without_a_login_pages_lead_to_it_and_data_is_refused(client):
    answer = client.get("/inside?a=1&b=2", headers=HTML)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/login?next=%2Finside%3Fa%3D1%26b%3D2"
    for path in ("/inside", "/runs/1.json", "/runs/1/live", "/nowhere", "/static"):
        assert client.get(path).status_code == 401
    assert client.get("/inside.json", headers=HTML).status_code == 401
    assert client.post("/inside", headers=HTML).status_code == 401


def test_only_the_login_and_static_files_are_open(client):
    assert client.get("/login", headers=HTML).status_code == 200
    assert client.get("/static/css/site.css").status_code == 200
    for path in ("/static/../inside", "/static/%2e%2e/inside", "//inside", "/login/", "/logina"):
        answer = client.get(path)
        assert answer.status_code in (401, 404), path
        assert "inside" not in answer.text or answer.status_code == 401


def test_a_fragment_sends_its_page_to_the_login(client):
    answer = client.get("/inside", headers=HTML | {"hx-request": "true"})
    assert answer.status_code == 401
    assert answer.headers["hx-redirect"] == "/login"


def test_the_token_opens_a_session(client):
    answer = log_in(client)
    assert (answer.status_code, answer.headers["location"]) == (303, "/inside")
    [cookie] = SimpleCookie(answer.headers["set-cookie"]).values()
    assert cookie["httponly"]
    assert cookie["samesite"].lower() == "strict"
    assert not cookie["secure"]
    assert TOKEN not in answer.headers["set-cookie"]
    assert client.get("/inside").json() == {"inside": "yes"}
    assert client.get("/login", headers=HTML).status_code == 303


def test_over_https_the_cookie_stays_there(client):
    headers = page_headers(client, "/login") | {"x-forwarded-proto": "https"}
    headers["origin"] = headers["origin"].replace("http:", "https:")
    answer = client.post("/login", data={"token": TOKEN}, headers=headers)
    assert "; Secure" in answer.headers["set-cookie"]


def test_after_logging_out_the_cookie_is_worth_nothing(client):
    log_in(client)
    cookies = dict(client.cookies)
    answer = client.post("/logout", headers=page_headers(client, "/nowhere"))
    assert answer.headers["location"] == "/login"
    assert not client.cookies
    kept = "; ".join(f"{name}={value}" for name, value in cookies.items())
    assert client.get("/inside", headers={"cookie": kept}).status_code == 401


def test_pages_of_a_session_have_a_token_of_their_own(client):
    before = page_headers(client, "/login")
    log_in(client)
    assert client.post("/inside", headers=before).status_code == 403
    after = page_headers(client, "/nowhere")
    assert client.post("/inside", headers=after).json() == {"changed": "yes"}


def test_a_made_up_session_is_none(client):
    name = f"retrograd_session_{client.base_url.port}"
    assert client.get("/inside", headers={"cookie": f"{name}=made-up"}).status_code == 401
    assert client.get("/inside", headers={"cookie": f"{name}="}).status_code == 401


@pytest.mark.parametrize(
    "elsewhere",
    ["https://evil.example", "//evil.example", "/\\evil.example", "\\evil", "evil", "/a\r\nb: c"],
)
def test_a_login_leads_nowhere_else(client, elsewhere):
    assert log_in(client, came_for=elsewhere).headers["location"] == "/"


def test_wrong_tokens_are_refused(client):
    answer = log_in(client, "wrong")
    assert answer.status_code == 401
    assert "not the server's token" in answer.text
    assert "set-cookie" not in answer.headers


def test_the_answer_to_a_wrong_token_waits(client):
    headers = HTML | page_headers(client, "/login")
    start = time.monotonic()
    client.get("/inside", headers={"authorization": "Bearer wrong"})
    assert time.monotonic() - start >= WRONG_SECONDS
    start = time.monotonic()
    client.post("/login", data={"token": "wrong"}, headers=headers)
    assert time.monotonic() - start >= WRONG_SECONDS
    start = time.monotonic()
    client.get("/inside")
    assert time.monotonic() - start < WRONG_SECONDS


def test_who_has_the_right_token_gets_in_whatever_others_try(client):
    """Even from the same address, as behind a proxy that does not tell them apart."""
    headers = HTML | page_headers(client, "/login")
    begun = time.monotonic()
    stop = False

    def stranger() -> int:
        tried = 0
        with httpx.Client(base_url=client.base_url) as own:
            while not stop and time.monotonic() - begun < 20:
                own.get("/inside", headers={"authorization": f"Bearer {tried}"})
                own.post("/login", data={"token": str(tried)}, headers=headers)
                tried += 1
        return tried

    with ThreadPoolExecutor() as pool:
        strangers = [pool.submit(stranger) for _ in range(4)]
        taken = []
        for _ in range(10):
            start = time.monotonic()
            bearer = {"authorization": f"Bearer {TOKEN}"}
            assert client.get("/inside", headers=bearer).status_code == 200
            answer = client.post("/login", data={"token": TOKEN}, headers=headers)
            assert answer.status_code == 303
            client.cookies.clear()
            taken.append(time.monotonic() - start)
        stop = True
        assert all(one.result() > 0 for one in strangers)
    assert max(taken) < 1


@pytest.mark.parametrize("token", ["hunter2", "x" * 21, "ab" * 30])
def test_a_token_that_could_be_found_by_trying_is_refused(token):
    with pytest.raises(ConfigError, match="It needs 22 or more"):
        refuse_short(SecretStr(token))


def test_a_token_of_128_random_bits_will_do():
    refuse_short(SecretStr(secrets.token_urlsafe(16)))
    refuse_short(SecretStr(secrets.token_hex(16)))
    refuse_short(None)


def test_scripts_send_the_token_itself(client):
    bearer = {"authorization": f"Bearer {TOKEN}"}
    assert client.get("/inside", headers=bearer).json() == {"inside": "yes"}
    # No page of another site can send this header, so it needs no token of a form.
    assert client.post("/inside", headers=bearer).json() == {"changed": "yes"}
    foreign = bearer | {"origin": "https://evil.example"}
    assert client.post("/inside", headers=foreign).status_code == 403


def test_a_wrong_bearer_is_refused(client):
    for given in ("Bearer wrong", "Bearer", "bearer " + TOKEN[:-1]):
        answer = client.get("/inside", headers={"authorization": given})
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
    basic = client.get("/inside", headers={"authorization": "Basic dTpw"})
    assert basic.status_code == 401


def test_without_a_token_nobody_is_asked(serve):
    client = serve(router)
    assert client.get("/inside").json() == {"inside": "yes"}
    assert client.get("/login", headers=HTML).status_code == 303


def test_the_token_is_found_nowhere(client, store, caplog, capfd):
    log_in(client, "wrong")
    log_in(client)
    pages = [client.get(path, headers=HTML).text for path in ("/nowhere", "/login", "/")]
    session = client.cookies[f"retrograd_session_{client.base_url.port}"]
    told = "".join([*pages, caplog.text, *capfd.readouterr()])
    kept = b"".join(path.read_bytes() for path in _files(store))
    for secret in (TOKEN, session):
        assert secret not in told
        assert secret.encode() not in kept


def _files(store):
    return list(Path(store.place).parent.glob("store.db*"))


def test_sessions_end_and_are_bounded():
    now = [0.0]
    access = Access(SecretStr(TOKEN), clock=lambda: now[0])
    first = access.open_session()
    now[0] = SESSION_SECONDS - 1.0
    assert access.is_open(first)
    now[0] = SESSION_SECONDS + 1.0
    assert not access.is_open(first)
    later = [access.open_session() for _ in range(1500)]
    assert sum(access.is_open(name) for name in later) == 1000
    assert access.is_open(later[-1])


def test_two_sessions_have_two_form_tokens_and_two_servers_too():
    one, two = Access(SecretStr(TOKEN)), Access(SecretStr(TOKEN))
    tokens = {one.form_token("a"), one.form_token("b"), one.form_token(""), two.form_token("a")}
    assert len(tokens) == 4
    assert one.form_token("a") == one.form_token("a")


def test_the_token_is_compared_whole():
    access = Access(SecretStr("ü" + TOKEN))
    assert access.is_token("ü" + TOKEN)
    assert not access.is_token(TOKEN)
    assert not access.is_token("")
    assert not Access(None).is_token("")
