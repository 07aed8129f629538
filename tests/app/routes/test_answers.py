from __future__ import annotations

import csv
import io
import json
from contextlib import closing

import pytest
from fastapi.testclient import TestClient
from read_runs import answer, group, held_out, numbered, read_run, unlearned
from sqlalchemy import select
from told_runs import groups, info, tell, whole_run

from app.settings import ServerSettings
from app.store.database import Store
from app.store.models import Answer
from app.store.monitor import StoreMonitor
from app.web import create_app


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with closing(Store.open(str(tmp_path_factory.mktemp("files") / "store.db"))) as opened:
        yield opened


@pytest.fixture(scope="module")
def client(store):
    app = create_app(ServerSettings(), store)
    return TestClient(app, base_url="http://127.0.0.1:8765", follow_redirects=False)


@pytest.fixture(scope="module")
def run(store, tmp_path_factory):
    told = {
        1: groups(1, count=2, size=2),
        2: [
            group(
                0,
                answer(0, '=HYPERLINK("http://x")', 1.0),
                answer(1, "-5", 0.5),
                answer(2, 'a,b\n"c" \u2028é', 0.25),
                unlearned(3, "+cmd", 0.0, "truncated"),
            ),
            group(1, answer(0, "@SUM(1)", 0.1)),
        ],
    }
    folder = tmp_path_factory.mktemp("run")
    return read_run(store, folder, told, evaluations={2: held_out("held")})


def rows(client, run, query="", ending="jsonl"):
    response = client.get(f"/runs/{run}/trajectories.{ending}?{query}")
    assert response.status_code == 200
    if ending == "csv":
        return list(csv.DictReader(io.StringIO(response.text, newline="")))
    return [json.loads(line) for line in response.text.split("\n") if line]


def test_a_lasting_address_leads_to_the_answer(client, store, run):
    ids = numbered(store, run)
    place = client.get(f"/runs/{run}/answers/{ids['@SUM(1)']}")
    assert place.status_code == 302
    assert place.headers["location"] == (
        f"/runs/{run}/trajectories?update=2&group=1#answer-{ids['@SUM(1)']}"
    )
    held = client.get(f"/runs/{run}/answers/{ids['held']}").headers["location"]
    assert held.startswith(f"/runs/{run}/trajectories?update=2&group=0&kind=evaluation#")


def test_an_answer_of_another_run_or_of_none_is_not_there(client, store, run):
    number = numbered(store, run)["held"]
    assert client.get(f"/runs/{run}/answers/{number + 10_000}").status_code == 404
    assert client.get(f"/runs/{run + 1}/answers/{number}").status_code == 404
    assert client.get(f"/runs/{run}/answers/{10**30}").status_code == 404


def test_a_superseded_answer_says_so(client, store, tmp_path):
    first = whole_run(store, tmp_path, 5, end=False)
    again = StoreMonitor(store, first._run_id)
    again.run_started(info(tmp_path, resumed_from_update=3))
    tell(again, 4)
    again.settle()
    again.abandon()
    hidden = select(Answer.id).where(Answer.run_id == first._run_id, Answer.update == 5).limit(1)
    with store.read() as session:
        number = session.scalars(hidden).one()
    gone = client.get(f"/runs/{first._run_id}/answers/{number}")
    assert gone.status_code == 404
    assert "was superseded" in gone.text
    assert {row["update"] for row in rows(client, first._run_id, "scope=run")} == {1, 2, 3, 4}


@pytest.mark.parametrize(
    ("query", "texts"),
    [
        ("update=2&group=1", ["@SUM(1)"]),
        ("update=2&min=0.5", ['=HYPERLINK("http://x")', "-5"]),
        ("update=2&skip=truncated&group=1", ["+cmd"]),
        ("kind=evaluation", ["held"]),
        ("scope=run&max=0.1&min=0.05", ["@SUM(1)"]),
    ],
)
def test_a_file_has_what_is_selected(client, run, query, texts):
    assert [row["completion"] for row in rows(client, run, query)] == texts


def test_the_latest_update_or_the_whole_run(client, run):
    assert {row["update"] for row in rows(client, run)} == {2}
    assert len(rows(client, run, "scope=run")) == 9


def test_a_line_of_json_is_exact(client, run):
    first = rows(client, run, "update=2")[2]
    assert first["completion"] == 'a,b\n"c" \u2028é'
    assert first["prompt"] == [{"role": "user", "content": "Question number 0?"}]
    assert first["parts"] == {"right": 0.25}
    assert (first["update"], first["group"], first["member"]) == (2, 0, 2)


def test_a_spreadsheet_takes_no_text_for_a_formula(client, run):
    table = rows(client, run, "update=2", "csv")
    assert [row["completion"] for row in table] == [
        '\'=HYPERLINK("http://x")',
        "-5",
        'a,b\n"c" \u2028é',
        "'+cmd",
        "'@SUM(1)",
    ]
    assert table[0]["reward"] == "1.0"
    assert json.loads(table[0]["parts"]) == {"right": 1.0}


def test_files_are_attachments(client, run):
    for ending in ("csv", "jsonl"):
        headers = client.get(f"/runs/{run}/trajectories.{ending}").headers
        assert headers["content-disposition"] == (
            f'attachment; filename="run-{run}-answers.{ending}"'
        )
        assert headers["x-content-type-options"] == "nosniff"


def test_a_run_without_answers_gives_an_empty_file(client, store, tmp_path):
    other = read_run(store, tmp_path, {})
    assert rows(client, other) == []
    assert rows(client, other, ending="csv") == []
    assert client.get("/runs/999/trajectories.csv").status_code == 404
