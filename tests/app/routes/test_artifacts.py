from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from told_runs import enter, info, outcome, tell

from app.settings import ServerSettings
from app.store.database import Store
from app.store.models import Artifact
from app.store.monitor import StoreMonitor
from app.web import create_app

CONTENT = bytes(range(256)) * 40
NAME = 'a "b" <i>;\n\u202eü.gguf'


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.fixture
def store(tmp_path, folder) -> Iterator[Store]:
    """Run 1 of the browser, ended, with an adapter of a strange name and one checkpoint."""
    store = Store.open(str(tmp_path / "store.db"))
    monitor = StoreMonitor(store, enter(store, folder, source="browser"))
    monitor.run_started(info(folder))
    for update in (1, 2, 3):
        tell(monitor, update)
    (folder / NAME).write_bytes(CONTENT)
    (folder / "adapter.checkpoints").mkdir()
    (folder / "adapter.checkpoints" / "update-000003.ckpt").write_bytes(b"state")
    monitor.run_finished(outcome(3, output=str(folder / NAME)))
    yield store
    store.close()


@pytest.fixture
def client(store) -> TestClient:
    app = create_app(ServerSettings(), store)
    return TestClient(app, base_url="http://127.0.0.1:8765", headers={"accept": "text/html"})


@pytest.fixture
def files(client) -> dict[str, dict[str, object]]:
    found = client.get("/runs/1/artifacts.json").json()["files"]
    return {file["kind"]: file for file in found}


def test_every_file_stands_with_its_size_hash_and_time(client, files, folder):
    assert list(files) == ["adapter", "checkpoint", "config"]
    adapter = files["adapter"]
    assert adapter["size"] == len(CONTENT)
    assert adapter["sha256"] == hashlib.sha256(CONTENT).hexdigest()
    assert adapter["state"] == "there"
    assert (adapter["update"], files["checkpoint"]["update"]) == (3, 3)
    assert files["config"]["update"] is None
    page = client.get("/runs/1/artifacts").text
    assert adapter["sha256"] in page
    assert "a &#34;b&#34; &lt;i&gt;;↵\\u202eü.gguf" in page


def test_a_file_is_downloaded_and_never_shown(client, files):
    answer = client.get(f"/runs/1/artifacts/{files['adapter']['id']}")
    assert answer.content == CONTENT
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert answer.headers["content-disposition"] == (
        'attachment; filename="run-1-adapter.gguf"; '
        "filename*=utf-8''a%20%22b%22%20%3Ci%3E%3B%0A%E2%80%AE%C3%BC.gguf"
    )


def test_a_download_goes_on_where_it_broke_off(client, files):
    address = f"/runs/1/artifacts/{files['adapter']['id']}"
    head = client.head(address)
    assert (head.headers["content-length"], head.headers["accept-ranges"]) == ("10240", "bytes")
    rest = client.get(address, headers={"range": "bytes=10000-", "if-range": head.headers["etag"]})
    assert (rest.status_code, rest.content) == (206, CONTENT[10000:])
    assert rest.headers["content-range"] == "bytes 10000-10239/10240"
    beyond = client.get(address, headers={"range": "bytes=20000-"})
    assert beyond.status_code == 416


def test_what_went_away_or_was_swapped_is_told_and_not_served(client, files, folder, tmp_path):
    (tmp_path / "secret").write_text("secret")
    adapter = f"/runs/1/artifacts/{files['adapter']['id']}"
    (folder / NAME).unlink()
    assert client.get(adapter).status_code == 410
    assert "is not there any more" in client.get("/runs/1/artifacts").text
    (folder / NAME).symlink_to(tmp_path / "secret")
    answer = client.get(adapter)
    assert answer.status_code == 403
    assert "secret" not in answer.text
    (folder / NAME).unlink()
    (folder / NAME).write_text("another adapter")
    assert client.get(adapter).status_code == 410
    assert client.get("/runs/1/artifacts.json").json()["files"][0]["state"] == "changed"


def test_only_what_was_recorded_of_this_run_is_served(client, store, files, tmp_path):
    number = files["adapter"]["id"]
    (tmp_path / "second").mkdir()
    second = enter(store, tmp_path / "second", source="browser")
    assert client.get(f"/runs/{second}/artifacts/{number}").status_code == 404
    for path in ("999", "-1", "run.toml", "..%2Frun.toml", "%2Fetc%2Fpasswd"):
        assert client.get(f"/runs/1/artifacts/{path}").status_code == 404
    # Recorded, and yet outside of the folder that a run of the browser writes to.
    outside = tmp_path / "outside"
    outside.write_text("outside")
    with store.write() as session:
        row = Artifact(
            run_id=second,
            kind="observe",
            path=str(outside),
            size=7,
            sha256="0" * 64,
            created_at=outside.stat().st_mtime,
        )
        session.add(row)
        session.flush()
        other = row.id
    assert client.get(f"/runs/{second}/artifacts/{other}").status_code == 403


def test_the_run_comes_as_a_table_and_as_records(client):
    table = client.get("/runs/1/export/metrics.csv")
    assert table.headers["content-disposition"] == 'attachment; filename="addition-metrics.csv"'
    rows = list(csv.DictReader(io.StringIO(table.text)))
    assert [row["update"] for row in rows] == ["1", "2", "3"]
    assert rows[1]["reward/mean"] == "0.02"
    metrics = [
        json.loads(line) for line in client.get("/runs/1/export/metrics.jsonl").text.splitlines()
    ]
    assert [record["type"] for record in metrics] == ["update"] * 3
    records = client.get("/runs/1/export/records.jsonl").text.splitlines()
    kinds = [json.loads(line)["type"] for line in records]
    assert kinds.count("rollout") == 3 * 2 * 4
    answers = list(csv.DictReader(io.StringIO(client.get("/runs/1/export/answers.csv").text)))
    assert len(answers) == 3 * 2 * 4
    for name in ("answers.jsonl", "events.csv", "events.jsonl"):
        assert client.get(f"/runs/1/export/{name}").status_code == 200
        assert f'href="/runs/1/export/{name}"' in client.get("/runs/1/artifacts").text
    assert client.get("/runs/1/export/store.db").status_code == 404
    assert client.get("/runs/99/export/metrics.csv").status_code == 404


def test_a_run_without_files_says_when_there_will_be_some(client, store, tmp_path):
    (tmp_path / "waiting").mkdir()
    number = enter(store, tmp_path / "waiting", source="browser", status="queued")
    assert "Checkpoints appear here" in client.get(f"/runs/{number}/artifacts").text
    (tmp_path / "ended").mkdir()
    number = enter(store, tmp_path / "ended", status="failed")
    assert "The run left no file" in client.get(f"/runs/{number}/artifacts").text


def test_a_merged_model_stands_before_its_adapter(client, store, tmp_path):
    folder = tmp_path / "third"
    folder.mkdir()
    monitor = StoreMonitor(store, enter(store, folder, source="browser"))
    monitor.run_started(info(folder, output=str(folder / "m.gguf")))
    tell(monitor, 1)
    (folder / "m.gguf").write_bytes(CONTENT)
    (folder / "m.adapter.gguf").write_bytes(b"adapter")
    paths = {"output": str(folder / "m.gguf"), "adapter": str(folder / "m.adapter.gguf")}
    monitor.run_finished(outcome(1, **paths))
    files = client.get(f"/runs/{monitor.run_id}/artifacts.json").json()["files"]
    found = {file["kind"]: (file["name"], file["update"], file["size"]) for file in files}
    assert list(found) == ["model", "adapter", "config"]
    assert found["model"] == ("m.gguf", 1, len(CONTENT))
    assert found["adapter"] == ("m.adapter.gguf", 1, 7)
    assert files[0]["about"].startswith("The base with the adapter merged in")
    model = client.get(f"/runs/{monitor.run_id}/artifacts/{files[0]['id']}")
    assert model.content == CONTENT
    assert model.headers["content-disposition"] == 'attachment; filename="m.gguf"'


def test_where_merging_failed_the_model_of_an_earlier_segment_keeps_its_update(
    client, store, tmp_path
):
    folder = tmp_path / "fourth"
    folder.mkdir()
    number = enter(store, folder, source="browser")
    (folder / "m.gguf").write_bytes(CONTENT)
    (folder / "m.adapter.gguf").write_bytes(b"adapter")
    ends = (
        {"output": str(folder / "m.gguf"), "status": "stopped"},
        {"output": None, "status": "failed"},
    )
    for update, end in enumerate(ends, start=1):
        monitor = StoreMonitor(store, number)
        resumed = {"resumed_from_update": update - 1} if update > 1 else {}
        monitor.run_started(info(folder, output=str(folder / "m.gguf"), **resumed))
        tell(monitor, update)
        monitor.run_finished(outcome(update, adapter=str(folder / "m.adapter.gguf"), **end))
    files = client.get(f"/runs/{number}/artifacts.json").json()["files"]
    assert [(f["kind"], f["update"]) for f in files[:2]] == [("model", 1), ("adapter", 2)]
