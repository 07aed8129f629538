from __future__ import annotations

import errno
import os
from contextlib import closing

import httpx
import pytest
from fastapi import APIRouter, HTTPException
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from web import served

from app.settings import ServerSettings
from app.store.database import Store
from app.store.presence import StoreGoneError
from app.web import create_app
from trainer.errors import RetrogradError

router = APIRouter()


@router.get("/thing/{number}")
def thing(number: int) -> int:
    return number


@router.get("/gone.json")
@router.get("/gone")
def gone() -> None:
    raise HTTPException(404, "There is no <b>run</b> 7.", headers={"x-kept": "yes"})


@router.get("/broken")
def broken() -> None:
    raise ZeroDivisionError("a secret of the server")


@router.get("/busy")
def busy() -> None:
    raise OperationalError("SELECT secret", {}, Exception("database is locked"))


@router.get("/full")
def full() -> None:
    raise PoolTimeoutError("QueuePool limit reached")


@router.get("/refused")
def refused() -> None:
    raise RetrogradError("Run 7 cannot be deleted, because it is running.")


@router.get("/no-space")
def no_space() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/a/secret/path")


@router.get("/store-gone")
def store_gone() -> None:
    raise StoreGoneError("BEGIN", None, Exception("the file /a/secret/path is not there any more"))


@pytest.fixture
def client(serve):
    return serve(router)


def test_a_person_gets_a_page_and_a_program_gets_json(client):
    page = client.get("/gone", headers={"accept": "text/html,*/*"})
    assert page.status_code == 404
    assert "There is no &lt;b&gt;run&lt;/b&gt; 7." in page.text
    assert 'class="top"' in page.text
    for path, accept in (("/gone", "*/*"), ("/gone.json", "text/html")):
        data = client.get(path, headers={"accept": accept})
        assert data.headers["x-kept"] == "yes"
        assert data.json() == {
            "status": 404,
            "error": "Not Found",
            "detail": "There is no <b>run</b> 7.",
        }


def test_what_was_asked_wrongly_is_named(client):
    answer = client.get("/thing/x")
    assert answer.status_code == 422
    assert answer.json()["detail"] == "number = x must be a whole number."
    page = client.get("/thing/x", headers={"accept": "text/html"})
    assert "number = x must be a whole number." in page.text


def test_a_fault_of_ours_tells_nothing_of_the_inside(client, caplog):
    for accept in ("text/html", "application/json"):
        answer = client.get("/broken", headers={"accept": accept})
        assert answer.status_code == 500
        assert "secret" not in answer.text
        assert "Traceback" not in answer.text
        assert answer.headers["content-security-policy"]
    assert caplog.text.count("ZeroDivisionError: a secret of the server") == 2


def test_a_store_that_does_not_answer_is_worth_a_second_try(client, caplog):
    answer = client.get("/busy")
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    assert "secret" not in answer.text
    assert "database is locked" in caplog.text


def test_nor_is_one_whose_connections_are_all_in_use_a_fault(client):
    assert client.get("/full").status_code == 503


def test_a_wrong_method_says_which_are_right(client):
    answer = client.post("/login", headers={"authorization": "x"})
    assert answer.status_code == 403  # no origin comes first
    answer = client.request("OPTIONS", "/gone")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET"


def test_what_cannot_be_done_now_is_said_as_it_is(client):
    answer = client.get("/refused")
    assert answer.status_code == 409
    assert answer.json()["detail"] == "Run 7 cannot be deleted, because it is running."


def test_of_a_file_the_system_s_words_are_told_and_no_path(client):
    answer = client.get("/no-space")
    assert answer.status_code == 500
    assert "No space left on device" in answer.json()["detail"]
    assert "secret" not in answer.text


def test_a_store_that_is_gone_is_told_with_what_to_do(client):
    answer = client.get("/store-gone", headers={"accept": "text/html"})
    assert answer.status_code == 503
    assert "deleted, emptied, renamed or replaced while this server had it open" in answer.text
    assert "Put the file back" in answer.text
    assert "secret" not in answer.text


def test_pages_of_a_store_that_was_deleted_are_not_shown_any_more(tmp_path):
    path = tmp_path / "store.db"
    with (
        closing(Store.open(str(path))) as store,
        served(create_app(ServerSettings(), store)) as address,
        httpx.Client(base_url=address, timeout=20) as client,
    ):
        assert client.get("/", headers={"accept": "text/html"}).status_code == 200
        aside = path.rename(tmp_path / "aside.db")
        for _ in range(2):
            assert client.get("/runs.json").status_code == 503
        assert not path.exists()
        aside.rename(path)
        assert client.get("/runs.json").status_code == 200, "where it is put back all is well"
