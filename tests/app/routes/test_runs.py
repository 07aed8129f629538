from __future__ import annotations

from contextlib import closing

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event
from told_runs import enter, whole_run

from app.routes.runs import PER_PAGE, address, runs, spark_path
from app.settings import ServerSettings
from app.store.database import Store
from app.web import create_app


@pytest.fixture
def store(tmp_path):
    with closing(Store.open(str(tmp_path / "store.db"))) as opened:
        yield opened


@pytest.fixture
def get(store):
    client = TestClient(create_app(ServerSettings(), store), base_url="http://127.0.0.1")
    return client.get


def test_an_empty_list_says_how_to_start(get):
    html = get("/").text
    assert "No runs yet" in html
    assert "retrograd train" in html
    assert 'href="/runs/new"' in html


def test_a_run_has_its_line(store, get, tmp_path):
    run_id = whole_run(store, tmp_path, 5).run_id
    page = runs(store)
    (line,) = page.lines
    assert (line.run.id, line.run.name, line.run.status) == (run_id, "addition", "completed")
    assert line.run.last_reward == 0.05
    assert line.progress == 0.25
    assert line.spark.startswith("M0,")
    html = get("/").text
    assert f'href="/runs/{run_id}"' in html
    assert f">{run_id}</span>" in html, "its number is what commands take"
    assert "5 of 20" in html
    assert line.spark in html


def test_the_list_reads_no_table_but_that_of_the_runs(store, get, tmp_path):
    whole_run(store, tmp_path, 3)
    asked = []

    def note(_connection, _cursor, statement, *_rest):
        asked.append(statement)

    event.listen(store.engine, "before_cursor_execute", note)
    assert get("/").status_code == 200
    read = " ".join(s for s in asked if s.startswith("SELECT"))
    assert "FROM runs" in read
    for table in ("metrics", "updates", "groups", "answers", "events", "segments"):
        assert f"FROM {table}" not in read


def test_filters_and_their_counts(store, tmp_path):
    for status in ("queued", "running", "failed", "interrupted", "completed"):
        enter(store, tmp_path, status=status, name=f"a {status} run")
    page = runs(store, status="failed")
    assert [line.run.status for line in page.lines] == ["interrupted", "failed"]
    counts = {choice.label: choice.count for choice in page.choices}
    assert counts == {"all": 5, "running": 1, "queued": 1, "finished": 1, "failed": 2}
    assert [choice.label for choice in page.choices if choice.current] == ["failed"]
    assert (page.running, page.queued, page.every, page.total) == (1, 1, 5, 2)


def test_what_is_filtered_stays_so_in_the_addresses(store, get, tmp_path):
    enter(store, tmp_path, name="adding & more")
    page = runs(store, text="& more", sort="name")
    assert len(page.lines) == 1
    by_name = {choice.label: choice.address for choice in page.choices}
    assert by_name["failed"] == "/?q=%26+more&status=failed&sort=name"
    assert page.orders["newest"].address == "/?q=%26+more"
    assert "No run fits" in get("/?q=nothing+like+it").text


def test_a_long_list_has_pages(store, tmp_path):
    for _ in range(PER_PAGE + 3):
        enter(store, tmp_path, status="completed")
    first, second = runs(store), runs(store, offset=PER_PAGE)
    assert (len(first.lines), first.earlier, first.later) == (PER_PAGE, None, "/?offset=50")
    assert (len(second.lines), second.earlier, second.later) == (3, "/", None)
    assert second.first == PER_PAGE + 1


def test_why_a_run_failed_stands_beside_its_status(store, get, tmp_path):
    enter(store, tmp_path, status="failed", message="The reward program <exited>.")
    html = get("/").text
    assert "The reward program &lt;exited&gt;." in html
    assert ">failed</span>" in html


def test_the_same_as_json(store, get, tmp_path):
    run_id = whole_run(store, tmp_path, 2).run_id
    told = get("/runs.json?status=finished").json()
    assert [line["run"]["id"] for line in told["lines"]] == [run_id]
    assert told["total"] == 1


@pytest.mark.parametrize("query", ["sort=sideways", "offset=-1", "offset=x"])
def test_an_address_that_makes_no_sense_is_refused(get, query):
    assert get(f"/runs.json?{query}").status_code == 422


def test_nothing_stands_in_an_address_that_goes_without_saying():
    assert address("", "", "newest") == "/"
    assert address("a b", "failed", "name", 50) == "/?q=a+b&status=failed&sort=name&offset=50"


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ([], ""),
        ([None, None], ""),
        ([0.0, 1.0], "M0,24L120,2"),
        ([0.0, 0.5, 1.0], "M0,24L60,13L120,2"),
        ([0.3, 0.3], "M0,13L120,13"),
        ([0.7], "M0,13h0.1"),
        ([0.0, None, 0.5, 1.0], "M0,24h0.1M80,13L120,2"),
    ],
)
def test_a_sparkline_is_a_path(values, path):
    assert spark_path(values) == path


def test_a_status_that_there_is_not_is_told_with_those_that_there_are(get):
    answer = get("/runs.json?status=nonsense")
    assert answer.status_code == 422
    assert "'nonsense' is none of running, finished, failed, queued" in answer.json()["detail"]
    for status in ("", "running", "interrupted"):
        assert get(f"/runs.json?status={status}").status_code == 200
