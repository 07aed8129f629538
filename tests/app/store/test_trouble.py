"""What may go wrong around a store while runs train: none of it slows or stops one."""

from __future__ import annotations

import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import told_runs
from sqlalchemy import create_engine, event, func, select, text
from sqlalchemy.exc import DatabaseError, OperationalError
from told_runs import (
    enter,
    group,
    groups,
    info,
    outcome,
    tell,
    the_run,
    values,
    wait_until,
    whole_run,
)

from app.store import monitor as monitor_module
from app.store.database import Store
from app.store.export import records_jsonl
from app.store.models import Answer, Artifact, Event, Metric, Update
from app.store.monitor import StoreMonitor
from app.store.presence import StoreGoneError, damaged
from app.store.queries.runs import list_runs
from trainer.monitor import Event as Told

TESTS = Path(told_runs.__file__).parent
CHILD = """
import sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from told_runs import enter, info, outcome, tell
from app.store.database import Store
from app.store.monitor import StoreMonitor
store = Store.open({url!r})
folder = Path({folder!r})
folder.mkdir(exist_ok=True)
monitor = StoreMonitor(store, enter(store, folder), lambda line: print("LOST", line, flush=True))
monitor.run_started(info(folder, updates={updates}))
print("run", monitor.run_id, flush=True)
for update in range(1, {updates} + 1):
    tell(monitor, update)
    print(update, time.time(), flush=True)
    time.sleep({pause})
monitor.run_finished(outcome({updates}))
"""


def child(url: str, folder: Path, *, updates: int, pause: float) -> subprocess.Popen[str]:
    """A process that makes a run by itself; it prints each update that it has told."""
    code = CHILD.format(tests=str(TESTS), url=url, folder=str(folder), updates=updates, pause=pause)
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=TESTS.parent,
        env=os.environ | {"PYTHONPATH": str(TESTS.parent)},
    )


def counted(store, model, run_id):
    with store.read() as session:
        return session.scalar(select(func.count()).where(model.run_id == run_id))


class Calls:
    """Tells a monitor things and keeps how long each call took, in seconds."""

    def __init__(self, monitor: StoreMonitor) -> None:
        self.monitor, self.times = monitor, []

    def __getattr__(self, name):
        def call(*arguments):
            start = time.perf_counter()
            result = getattr(self.monitor, name)(*arguments)
            self.times.append(time.perf_counter() - start)
            return result

        return call

    def assert_short(self) -> None:
        """None waited for the database. On a busy machine a single call may be kept from a core, so
        that the hard number holds for the middle one."""
        assert statistics.median(self.times) < 0.01
        assert max(self.times) < 1.0


@contextmanager
def locked(store: Store):
    """Somebody else writes, and does not end."""
    with store.write() as session:
        session.execute(text("UPDATE runs SET message = 'held'"))
        yield
        session.rollback()


def test_a_lock_of_three_seconds_delays_rows_and_nothing_else(store, tmp_path):
    monitor = StoreMonitor(store, enter(store, tmp_path))
    monitor.run_started(info(tmp_path))
    tell(monitor, 1)
    monitor.settle()
    calls = Calls(monitor)
    with locked(store):
        held = time.monotonic()
        update = 1
        while time.monotonic() < held + 3.0:
            update += 1
            tell(calls, update)
            calls.should_stop()
            time.sleep(0.05)
        assert counted(store, Update, monitor.run_id) == 1
    monitor.run_finished(outcome(update))
    calls.assert_short()
    run = the_run(store, monitor.run_id)
    assert (run.lost, run.status, run.completed) == (0, "completed", update)
    assert counted(store, Update, run.id) == update
    assert counted(store, Answer, run.id) == 8 * update


def test_a_full_disk_loses_rows_counts_them_and_says_so(file_store, tmp_path, monkeypatch):
    monkeypatch.setattr(monitor_module, "_END_SECONDS", 1.0)
    said = []
    run_id = enter(file_store, tmp_path)

    def small(connection, _record):
        connection.execute("PRAGMA max_page_count = 120")

    event.listen(file_store.engine, "connect", small)
    file_store.engine.dispose()  # further connections may not let the file grow
    monitor = StoreMonitor(file_store, run_id, said.append)
    monitor.run_started(info(tmp_path))
    calls = Calls(monitor)
    for update in range(1, 100):
        calls.trajectories(update, groups(update, text="word " * 50))
        calls.metrics(update, "trained", values(update))
    start = time.monotonic()
    monitor.run_finished(outcome(100))
    assert time.monotonic() - start < 5
    calls.assert_short()
    begun, ended = said
    assert begun.startswith(f"The store {file_store.place} cannot be written to (database or disk")
    assert "could not be stored" in ended
    assert "full" in ended
    with file_store.read() as session:
        assert list_runs(session).total == 1, "what was there is whole"


def test_when_there_is_room_again_the_rest_is_kept_and_the_loss_counted(file_store, tmp_path):
    monitor = StoreMonitor(file_store, enter(file_store, tmp_path))
    monitor._inbox._for_answers = 60_000
    monitor.run_started(info(tmp_path))
    with locked(file_store):
        time.sleep(0.3)
        for update in range(1, 41):
            tell(monitor, update)
    monitor.settle()
    tell(monitor, 41)
    monitor.run_finished(outcome(41))
    run = the_run(file_store, monitor.run_id)
    assert counted(file_store, Metric, run.id) == 41 * 7, "numbers find room where answers do not"
    kept = counted(file_store, Answer, run.id)
    assert 0 < run.lost < 41 * 10
    assert kept < 41 * 8
    assert run.lost * 8 == (41 * 8 - kept) * 10, "a group of four answers is five rows"
    with file_store.read() as session:
        [told] = session.scalars(select(Event).where(Event.code == "store_loss"))
    assert told.data == {"rows": run.lost}


def test_a_failure_while_checkpoints_are_listed_costs_nothing(store, tmp_path):
    folder = tmp_path / "adapter.checkpoints"
    folder.mkdir()
    (folder / "update-000001.ckpt").write_bytes(b"state")
    monitor = StoreMonitor(store, enter(store, tmp_path))
    monitor.run_started(info(tmp_path))
    failed = []

    def fail(_connection, _cursor, statement, *_):
        if statement.startswith("DELETE FROM artifacts") and not failed:
            failed.append(1)
            raise OperationalError(statement, {}, Exception("the server restarts"))

    event.listen(store.engine, "before_cursor_execute", fail)
    monitor.event(Told("info", "checkpoint", "saved", 1))
    tell(monitor, 1)
    wait_until(lambda: counted(store, Artifact, monitor.run_id) == 1)
    tell(monitor, 2)
    monitor.run_finished(outcome(2))
    assert failed
    run = the_run(store, monitor.run_id)
    assert (run.status, run.lost, run.completed) == ("completed", 0, 2)


def test_what_cannot_be_kept_is_lost_alone(store, tmp_path):
    monitor = StoreMonitor(store, enter(store, tmp_path))
    monitor.run_started(info(tmp_path))
    monitor.event(Told("info", "before", "one"))
    monitor.event(Told("info", "odd", "no form in JSON", data={"a": object()}))
    monitor.event(Told("info", "huge", "beyond any column", update=2**70))
    monitor.event(Told("info", "after", "two"))
    monitor.run_finished(outcome(1))
    with store.read() as session:
        codes = session.scalars(select(Event.code).order_by(Event.id)).all()
    assert [code for code in codes if code != "store_loss"] == ["before", "after"]
    run = the_run(store, monitor.run_id)
    assert (run.lost, run.status) == (2, "completed")


def test_a_large_update_does_not_hold_up_training(store, tmp_path):
    source = random.Random(1)
    words = ["".join(source.choices("abcdefghij", k=6)) for _ in range(2000)]
    pieces = [" ".join(source.choices(words, k=9362)) for _ in range(32)]  # 64 KiB each
    answers = [(pieces[i % 32] + str(i), 1.0) for i in range(256)]
    record = [group(g, answers[32 * g : 32 * (g + 1)]) for g in range(8)]
    monitor = StoreMonitor(store, enter(store, tmp_path))
    monitor.run_started(info(tmp_path))
    calls = Calls(monitor)
    calls.trajectories(1, record)
    for _ in range(100):
        calls.progress("train", 1, 2)
        calls.should_stop()
        time.sleep(0.002)
    calls.metrics(1, "trained", values(1))
    calls.assert_short()
    wait_until(lambda: counted(store, Answer, monitor.run_id) == 256, 60)
    monitor.run_finished(outcome(1))


def test_a_killed_process_loses_no_more_than_the_last_moment(store, url, tmp_path):
    with child(url, tmp_path / "run", updates=10_000, pause=0.01) as process:
        assert process.stdout is not None
        run_id = int(process.stdout.readline().split()[1])
        told = {}
        while len(told) < 100:
            update, at = process.stdout.readline().split()
            told[int(update)] = float(at)
        process.kill()
        killed = time.time()
        for line in process.stdout.read().splitlines():
            if len(parts := line.split()) == 2:
                told[int(parts[0])] = float(parts[1])
    assert process.returncode == -signal.SIGKILL
    with store.read() as session:
        kept = session.scalars(select(Update.update).order_by(Update.update)).all()
    assert list(kept) == list(range(1, len(kept) + 1)), "without a gap"
    lost = [update for update in told if update > len(kept)]
    assert all(killed - told[update] < 3.0 for update in lost)
    assert counted(store, Answer, run_id) >= 8 * len(kept)


@pytest.mark.full
def test_two_runs_write_while_pages_are_read_and_one_is_exported(store, url, tmp_path):
    whole = whole_run(store, tmp_path, 200).run_id
    ended = threading.Event()
    failures: list[BaseException] = []
    reads = []

    def read() -> None:
        try:
            while not ended.is_set():
                with store.read() as session:
                    list_runs(session)
                    session.execute(select(Metric.value).order_by(Metric.id.desc()).limit(200))
                reads.append(1)
                time.sleep(0.01)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    def export() -> None:
        try:
            while not ended.is_set():
                for _ in records_jsonl(store, whole):
                    time.sleep(0.0002)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work) for work in (read, read, read, export)]
    for thread in threads:
        thread.start()
    # Each tells 17 rows and 7 numbers of an update some 50 times a second.
    children = [child(url, tmp_path / n, updates=100, pause=0.02) for n in ("a", "b")]
    try:
        said = [process.communicate(timeout=120)[0] for process in children]
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert [process.returncode for process in children] == [0, 0]
    assert failures == []
    assert len(reads) > 50
    for output in said:
        assert "LOST" not in output
        run = the_run(store, int(output.split()[1]))
        assert (run.status, run.lost, run.completed) == ("completed", 0, 100)
        assert counted(store, Metric, run.id) == 700
        assert counted(store, Answer, run.id) == 800


def test_rows_come_in_fast_while_pages_are_read(store, tmp_path):
    """docs/store.md has what was measured; this bound is for a busy machine."""
    ended = threading.Event()

    def read() -> None:
        while not ended.is_set():
            with store.read() as session:
                list_runs(session)
                session.execute(select(Metric.value).order_by(Metric.id.desc()).limit(200)).all()
            time.sleep(0.1)

    monitor = StoreMonitor(store, enter(store, tmp_path))
    monitor.run_started(info(tmp_path))
    readers = [threading.Thread(target=read) for _ in range(3)]
    told = [groups(1, count=8, size=16, text="some words of an answer " * 8) for _ in range(20)]
    numbers = {f"family/metric_{i}": 1.0 for i in range(60)} | values(1)
    for reader in readers:
        reader.start()
    try:
        start = time.monotonic()
        for update, record in enumerate(told * 2, 1):
            monitor.trajectories(update, record)
            monitor.metrics(update, "trained", numbers)
        monitor.settle()
        seconds = time.monotonic() - start
    finally:
        ended.set()
        for reader in readers:
            reader.join()
    monitor.run_finished(outcome(40))
    run = the_run(store, monitor.run_id)
    rows = 40 * (8 * 17 + 1 + len(numbers))
    print(f"{rows / seconds:,.0f} rows a second")
    assert run.lost == 0
    assert counted(store, Answer, run.id) == 40 * 128
    assert rows / seconds > 200


def test_the_log_of_writes_stays_small(file_store, tmp_path):
    monitor = StoreMonitor(file_store, enter(file_store, tmp_path))
    monitor.run_started(info(tmp_path))
    log = tmp_path / "store.db-wal"
    sizes = []
    for update in range(1, 60):
        monitor.trajectories(update, groups(update, text="some words " * 2000))
        monitor.settle()
        sizes.append(log.stat().st_size)
    monitor.run_finished(outcome(60))
    assert (tmp_path / "store.db").stat().st_size > 10 << 20
    assert max(sizes) < 12 << 20


@pytest.mark.parametrize("signal_number", [signal.SIGTERM])
def test_a_second_process_finds_the_store_whole_after_a_crash(file_store, tmp_path, signal_number):
    with child(str(tmp_path / "store.db"), tmp_path / "run", updates=10_000, pause=0) as process:
        assert process.stdout is not None
        for _ in range(30):
            process.stdout.readline()
        process.send_signal(signal_number)
    with file_store.read() as session:
        assert session.execute(text("PRAGMA integrity_check")).scalar() == "ok"


# -- the file goes away ----------------------------------------------------------------------------


def deleted(path):
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


def renamed(path):
    path.rename(path.with_name("elsewhere.db"))


def replaced(path):
    deleted(path)
    with closing(Store.open(str(path))):
        pass


def folder_deleted(path):
    shutil.rmtree(path.parent)


@pytest.mark.parametrize("go_away", [deleted, renamed, replaced, folder_deleted])
def test_a_store_whose_file_goes_away_loses_nothing_of_the_run(tmp_path, go_away):
    path = tmp_path / "data" / "store.db"
    said = []
    with closing(Store.open(str(path))) as store:
        monitor = StoreMonitor(store, enter(store, tmp_path), said.append)
        monitor.run_started(info(tmp_path))
        tell(monitor, 1)
        monitor.settle()
        go_away(path)
        for update in (2, 3):
            tell(monitor, update)
            monitor.settle()
            assert not monitor.should_stop()
        monitor.run_finished(outcome(3))
    (rescued,) = path.parent.glob("store.rescued-*.db")
    [words] = said
    assert words.startswith(
        f"The store {path} was deleted, emptied, renamed or replaced while this run"
    )
    assert f"look at it with --store {rescued}" in words
    with closing(Store.open(str(rescued))) as kept:
        run = the_run(kept, monitor.run_id)
        assert (run.status, run.completed, run.lost) == ("completed", 3, 0)
        assert counted(kept, Update, run.id) == 3
        with kept.read() as session:
            assert session.scalars(select(Event.code).where(Event.code == "store_gone")).all()
    if go_away is replaced:
        with closing(Store.open(str(path))) as other, other.read() as session:
            assert session.scalar(select(func.count()).select_from(Update)) == 0


def test_a_file_that_is_gone_is_not_made_again_by_looking(tmp_path):
    path = tmp_path / "store.db"
    with closing(Store.open(str(path))) as store:
        deleted(path)
        for _ in range(3):
            with (
                store.read() as session,
                pytest.raises(StoreGoneError, match="is not there any more"),
            ):
                session.execute(text("SELECT 1"))
            with pytest.raises(StoreGoneError):
                store.engine.pool.recreate().connect()
    assert list(tmp_path.iterdir()) == []


def test_a_copy_that_cannot_be_made_is_told_and_training_goes_on(tmp_path, monkeypatch):
    """As on a disk that is full."""

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("app.store.database.rescue", full)
    monkeypatch.setattr(monitor_module, "_END_SECONDS", 1.0)
    said = []
    with closing(Store.open(str(tmp_path / "store.db"))) as store:
        monitor = StoreMonitor(store, enter(store, tmp_path), said.append)
        monitor.run_started(info(tmp_path))
        deleted(tmp_path / "store.db")
        calls = Calls(monitor)
        for update in (1, 2):
            tell(calls, update)
            calls.should_stop()
        monitor.run_finished(outcome(2))
    assert "a copy beside it cannot be made (No space left on device)" in said[0]
    assert any("rows of this run could not be stored" in line for line in said)
    assert len(said) == len(set(said)) <= 3


def test_a_store_that_was_emptied_is_told_and_not_called_whole_again(tmp_path, monkeypatch):
    monkeypatch.setattr(monitor_module, "_END_SECONDS", 1.0)
    path, said = tmp_path / "store.db", []
    with closing(Store.open(str(path))) as store:
        monitor = StoreMonitor(store, enter(store, tmp_path), said.append)
        monitor.run_started(info(tmp_path))
        for update in range(1, 30):
            tell(monitor, update)
        monitor.settle()
        path.write_bytes(b"")
        for update in range(30, 33):
            tell(monitor, update)
            monitor.settle()
            monitor.should_stop()
        monitor.run_finished(outcome(32))
    assert "emptied" in said[0]
    assert "what is still held of it is damaged" in said[0]
    assert "nothing was lost" not in " ".join(said)
    assert "of this run could not be stored" in said[-1]
    assert list(tmp_path.glob("*rescued*")) == []


def test_a_file_that_is_no_database_is_known_by_what_sqlite_says(tmp_path):
    (tmp_path / "other.db").write_bytes(b"no database at all" * 1000)
    engine = create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    with engine.connect() as connection, pytest.raises(DatabaseError) as caught:
        connection.execute(text("SELECT * FROM sqlite_master"))
    engine.dispose()
    assert damaged(caught.value)
    assert not damaged(ValueError("something else"))
