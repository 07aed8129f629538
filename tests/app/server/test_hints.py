from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing, contextmanager

import pytest
from told_runs import enter, wait_until

from app.server import hints as hints_module
from app.server.hints import Hints
from app.store.models import Run
from app.store.queries.changes import News

SOON = 1.0
"""Seconds from a commit to the hint, at most."""


@pytest.fixture
def hints(store):
    with closing(Hints(store)) as opened:
        yield opened


def touch(store, run_id):
    with store.write() as session:
        session.get_one(Run, run_id).pulse += 1


OTHERS: list[threading.Thread] = []


@pytest.fixture(autouse=True)
def others():
    """Threads of applications that earlier tests have left without an end."""
    OTHERS[:] = [thread for thread in threading.enumerate() if thread.name == "hints"]


def watchers():
    return [t for t in threading.enumerate() if t.name == "hints" and t not in OTHERS]


def run(scenario):
    """A coroutine, for no longer than a test may take."""
    return asyncio.run(asyncio.wait_for(scenario, timeout=10))


async def told(listener, seconds=SOON):
    return {one.kind for one in await asyncio.wait_for(listener.news(), seconds)}


def test_a_change_is_told_soon_to_those_whom_it_concerns(store, hints, tmp_path):
    mine, other = enter(store, tmp_path), enter(store, tmp_path)

    async def scenario():
        with hints.listen(mine) as run_listener, hints.listen(None) as list_listener:
            await asyncio.to_thread(hints.begun)
            await asyncio.to_thread(touch, store, mine)
            assert await told(run_listener) == {"run"}
            assert await told(list_listener) == {"runs"}
            await asyncio.to_thread(touch, store, other)
            assert await told(list_listener) == {"runs"}
            with pytest.raises(TimeoutError):
                await told(run_listener, 0.3)

    run(scenario())


def test_what_a_slow_reader_has_waiting_does_not_grow(store, hints, tmp_path):
    run_id = enter(store, tmp_path)

    async def scenario():
        with hints.listen(run_id) as listener:
            listener.tell([News(run_id, "metrics", n, str(n)) for n in range(1000)])
            listener.tell([News(run_id, "run", 7, "1001")])
            news = await listener.news()
            assert [(one.kind, one.last_id) for one in news] == [("metrics", 999), ("run", 7)]

    run(scenario())


def test_many_listeners_share_one_thread(store, hints, tmp_path):
    run_id = enter(store, tmp_path)
    assert not watchers(), "nobody listens yet"

    async def scenario():
        listening = [hints.listen(run_id) for _ in range(50)]
        listeners = [one.__enter__() for one in listening]
        await asyncio.to_thread(hints.begun)
        assert len(watchers()) == 1
        await asyncio.to_thread(touch, store, run_id)
        assert [await told(one) for one in listeners] == [{"run"}] * 50
        for one in listening:
            one.__exit__(None, None, None)

    run(scenario())


def test_nothing_is_looked_at_while_nobody_listens(store, hints, tmp_path):
    async def scenario():
        with hints.listen(None):
            await asyncio.to_thread(hints.begun)

    run(scenario())
    before = hints.looks
    enter(store, tmp_path)
    with pytest.raises(AssertionError):
        wait_until(lambda: hints.looks > before + 1, seconds=0.5)


def test_an_end_reaches_every_listener_and_the_thread(store, tmp_path):
    hints = Hints(store)

    async def scenario():
        with hints.listen(None) as listener:
            await asyncio.to_thread(hints.close)
            assert await asyncio.wait_for(listener.news(), SOON) == []
        with hints.listen(None) as late:
            assert await asyncio.wait_for(late.news(), SOON) == []

    run(scenario())
    assert not watchers()


@pytest.mark.parametrize("fault", [sqlite3.OperationalError("disk I/O error"), KeyError("x")])
def test_a_failure_of_the_driver_does_not_end_the_hints(store, tmp_path, monkeypatch, fault):
    """Whatever it was: the next page that listens starts them again."""
    run_id = enter(store, tmp_path)
    monkeypatch.setattr("app.server.hints._SECONDS_AFTER_A_FAILURE", 0.01)
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    raised = threading.Event()

    @contextmanager
    def failing_once(store):
        with changes(store) as (has_changed, seconds):

            def ask():
                if not raised.is_set():
                    raised.set()
                    raise fault
                return has_changed()

            yield ask, seconds

    changes = hints_module._changes
    monkeypatch.setattr(hints_module, "_changes", failing_once)

    async def scenario():
        with closing(Hints(store)) as hints:
            with hints.listen(run_id):
                await asyncio.to_thread(hints.begun)
                assert await asyncio.to_thread(raised.wait, 5)
            if isinstance(fault, KeyError):
                await asyncio.to_thread(hints._thread.join, 5)
            with hints.listen(run_id) as listener:
                await asyncio.to_thread(touch, store, run_id)
                assert await told(listener, 5) == {"run"}

    run(scenario())
