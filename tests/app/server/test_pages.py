from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from told_runs import whole_run

from app.routes import ROUTERS
from app.server.app import create_app
from app.server.settings import ServerSettings

LARGE = 10**30
ENDLESS = "9" * 5000
ADDRESSES = (
    "/runs/{}",
    "/runs/{}.json",
    "/runs/{}/metrics/markers",
    "/runs/{}/trajectories",
    "/runs/{}/trajectories.csv",
    "/runs/{}/live",
    "/runs/{}/live.json",
    "/runs/{}/config.toml",
    "/runs/{}/worker.log",
    "/runs/{}/delete",
    "/runs/1/answers/{}",
    "/runs/1/artifacts/{}",
    "/runs/new/{}",
)
QUERIES = (
    "/compare?run={}",
    "/?offset={}",
    "/runs/new?clone={}",
    "/runs/1/config?against={}",
    "/runs/1/journal?after={}",
    "/runs/1/journal?before={}",
    "/runs/1/metrics?from={}",
    "/runs/1/metrics/data?name=reward/mean&from={}",
    "/runs/1/metrics/data?name=reward/mean&after={}",
    "/runs/1/trajectories?update={}",
)
WORDS = (
    "/?q=a%00b",
    "/?status=%00",
    "/runs/1/journal?q=%00",
    "/runs/1/metrics?filter=%00",
    "/runs/1/metrics/data?name=%00",
    "/runs/1/metrics/data.csv?name=%00",
    "/runs/1/metrics/table?name=%00",
    "/runs/1/trajectories?q=a%00b",
    "/compare?run=1&metric=%00",
)


@pytest.fixture(scope="module")
def client(store, tmp_path_factory):
    whole_run(store, tmp_path_factory.mktemp("pages"), 2)
    return TestClient(create_app(ServerSettings(), store), base_url="http://127.0.0.1:8765")


@pytest.mark.parametrize("number", [2**53, LARGE, ENDLESS], ids=["2**53", "10**30", "endless"])
@pytest.mark.parametrize("address", ADDRESSES)
def test_there_is_nothing_at_an_address_with_a_large_number(client, address, number):
    assert client.get(address.format(number)).status_code == 404


@pytest.mark.parametrize("number", [2**63, ENDLESS], ids=["2**63", "endless"])
@pytest.mark.parametrize("address", QUERIES)
def test_a_large_number_in_a_query_is_refused(client, address, number):
    assert client.get(address.format(number)).status_code in (400, 422)


@pytest.mark.parametrize("address", WORDS)
def test_words_that_no_database_takes_find_nothing_or_are_refused(client, address):
    assert client.get(address).status_code in (200, 422)


def test_every_number_in_a_path_is_bounded():
    paths = [route.path for router in ROUTERS for route in router.routes]
    assert any("{run_id:id}" in path for path in paths)
    assert [path for path in paths if ":int}" in path] == []
