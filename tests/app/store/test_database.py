from __future__ import annotations

import shutil
import sqlite3
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import OperationalError
from told_runs import enter, the_run

from app.store.database import Store, default_path
from app.store.errors import StoreError
from app.store.models import Run


def test_a_store_that_was_closed_has_what_was_written(url, tmp_path):
    with closing(Store.open(url)) as store:
        run_id = enter(store, tmp_path)
    with closing(Store.open(url)) as store:
        assert the_run(store, run_id).name == "addition"


def test_without_a_url_the_environment_names_the_store(tmp_path, monkeypatch):
    monkeypatch.setenv("RETROGRAD_STORE", str(tmp_path / "mine.db"))
    with closing(Store.open()) as store:
        assert store.place == str(tmp_path / "mine.db")


def test_without_that_it_lies_in_the_users_data_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("RETROGRAD_STORE")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(sys, "platform", "linux")
    with closing(Store.open()) as store:
        assert store.place == str(tmp_path / "data" / "retrograd" / "retrograd.db")
    folder = (tmp_path / "data" / "retrograd").stat()
    assert stat.S_IMODE(folder.st_mode) == 0o700, "answers are nobody else's"


def test_where_the_data_folder_is(monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: Path("/home/me"))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    assert default_path() == Path("/home/me/.local/share/retrograd/retrograd.db")
    monkeypatch.setattr(sys, "platform", "darwin")
    found = Path("/home/me/Library/Application Support/retrograd/retrograd.db")
    assert default_path() == found


def test_a_file_that_is_no_database_is_refused(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("dear diary " * 100)
    with pytest.raises(StoreError, match=r"notes\.txt cannot be opened: file is not a database"):
        Store.open(str(path))
    assert path.read_text().startswith("dear diary")


@pytest.mark.parametrize(
    "place",
    [
        "nosuch://host/name",
        "postgresql+nosuch://host/name",
        "postgresql://host:port/name",
        "://name",
    ],
)
def test_a_url_that_nothing_opens_is_refused(place):
    with pytest.raises(StoreError, match="is no store that retrograd can open"):
        Store.open(place)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"Not a directory|File exists"):
        Store.open(str(tmp_path / "file" / "store.db"))


def test_a_server_that_is_not_there_is_named_without_its_password(tmp_path):
    with pytest.raises(StoreError) as refused:
        Store.open(f"postgresql+psycopg://me:secret@/name?host={tmp_path}")
    assert "me:***@" in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    ["postgresql+psycopg://me:secret@host:port/name", "postgresql+psycopg://h:p/n?password=secret"],
)
def test_a_url_that_cannot_be_read_is_shown_without_its_password(url):
    with pytest.raises(StoreError, match="is no store that") as refused:
        Store.open(url)
    assert "secret" not in str(refused.value)


def test_a_password_in_the_query_is_no_part_of_the_place(postgres):
    url = postgres.new_database() + "&password=secret"
    with closing(Store.open(url)) as store:
        assert "secret" not in store.place
        assert "host=" in store.place


def test_a_store_has_one_identity_under_every_address(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with closing(Store.open("runs.db")) as store:
        name, place = store.identity, store.place
    assert place == str(tmp_path / "runs.db")
    (tmp_path / "link.db").symlink_to("runs.db")
    for address in ("sqlite:///runs.db", place, f"sqlite:///{place}", "link.db"):
        with closing(Store.open(address)) as store:
            assert store.identity == name
            assert store.place == place
    shutil.copy("runs.db", "copy.db")
    for other in ("copy.db", "sqlite:///other.db"):
        with closing(Store.open(other)) as store:
            assert store.identity != name


def test_a_store_on_a_server_has_one_identity_too(postgres):
    url, other = postgres.new_database(), postgres.new_database()
    names = []
    for address in (url, url + "&application_name=again", other):
        with closing(Store.open(address)) as store:
            names.append(store.identity)
    assert names[0] == names[1] != names[2]


def test_a_store_of_a_newer_retrograd_is_refused(url):
    with closing(Store.open(url)) as store, store.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreError, match=r"newer retrograd .*9999.* Update retrograd"):
        Store.open(url)


def test_a_reader_sees_one_state(file_store, tmp_path):
    with file_store.read() as session:
        assert session.scalar(select(func.count()).select_from(Run)) == 0
        enter(file_store, tmp_path)
        assert session.scalar(select(func.count()).select_from(Run)) == 0
    with file_store.read() as session:
        assert session.scalar(select(func.count()).select_from(Run)) == 1


def test_a_writer_that_reads_first_writes_on_what_it_has_read(store, tmp_path):
    """Two of them count one up, at the same time and often."""
    run_id = enter(store, tmp_path)

    def count(_: int) -> None:
        with store.write() as session:
            run = session.scalars(select(Run).where(Run.id == run_id).with_for_update()).one()
            run.planned += 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(count, range(200)))
    assert the_run(store, run_id).planned == 200


def test_a_writer_waits_as_long_as_it_is_told(store, tmp_path):
    run_id = enter(store, tmp_path)
    change = text("UPDATE runs SET planned = 1")
    with store.write() as session:
        session.execute(change)
        start = time.monotonic()
        with pytest.raises(OperationalError), store.write(0.3) as other:
            other.execute(change)
        assert 0.2 < time.monotonic() - start < 2
    assert the_run(store, run_id).planned == 1


def test_a_block_that_fails_leaves_nothing(store, tmp_path):
    run_id = enter(store, tmp_path)

    def change_and_fail() -> None:
        with store.write() as session:
            session.get_one(Run, run_id).planned = 7
            session.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        change_and_fail()
    assert the_run(store, run_id).planned == 0


def test_foreign_keys_hold(store):
    with pytest.raises(Exception, match=r"(?i)foreign key"), store.write() as session:
        session.execute(text("INSERT INTO requests (run_id, kind, created_at) VALUES (9, 'a', 0)"))


def test_several_processes_may_open_a_new_store_at_once(url):
    code = "import sys\nfrom app.store.database import Store\nStore.open(sys.argv[1]).close()"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, url],
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        for _ in range(3)
    ]
    said = [process.communicate(timeout=60)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], said


def test_the_file_is_an_ordinary_database(file_store, tmp_path):
    run_id = enter(file_store, tmp_path)
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
        assert connection.execute("SELECT id FROM runs").fetchall() == [(run_id,)]
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
