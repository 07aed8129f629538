from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy.orm import Session
from told_runs import enter

from app.store.database import Store
from app.store.models import Event
from app.store.queries.journal import count_by_level, entries

LEVELS = ["info", "info", "warning", "info", "error", "info", "info", "warning"]


@pytest.fixture
def session(tmp_path) -> Iterator[Session]:
    """Eight events of run 1, between those of another run."""
    store = Store.open(str(tmp_path / "store.db"))
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        enter(store, tmp_path / name)
    with store.write() as session:
        for number, level in enumerate(LEVELS, start=1):
            for run_id in (1, 2):
                session.add(
                    Event(
                        run_id=run_id,
                        at=float(number),
                        level=level,
                        code=f"code_{number}",
                        message=f"100% of Message {number}",
                        data={},
                    )
                )
                session.flush()
    with store.read() as session:
        yield session
    store.close()


def numbers(found) -> list[int]:
    return [int(entry.code.removeprefix("code_")) for entry in found.rows]


def test_the_newest_are_shown_the_oldest_of_them_first(session):
    found = entries(session, 1, limit=3)
    assert (numbers(found), found.older, found.newer) == ([6, 7, 8], True, False)
    assert numbers(entries(session, 1)) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert not entries(session, 1).older


def test_a_cursor_goes_on_from_a_row(session):
    all_of_them = entries(session, 1).rows
    later = entries(session, 1, after=all_of_them[2].id, limit=3)
    assert (numbers(later), later.older, later.newer) == ([4, 5, 6], True, True)
    earlier = entries(session, 1, before=all_of_them[2].id, limit=3)
    assert (numbers(earlier), earlier.older, earlier.newer) == ([1, 2], False, True)


def test_past_either_end_there_is_nothing_and_a_way_back(session):
    rows = entries(session, 1).rows
    past = entries(session, 1, after=rows[-1].id)
    assert (numbers(past), past.older, past.newer) == ([], True, False)
    before = entries(session, 1, before=rows[0].id)
    assert (numbers(before), before.older, before.newer) == ([], False, True)


def test_levels_are_at_least_the_one_that_is_asked_for(session):
    assert numbers(entries(session, 1, level="warning")) == [3, 5, 8]
    assert numbers(entries(session, 1, level="error")) == [5]
    found = entries(session, 1, level="warning", limit=1)
    assert (numbers(found), found.older) == ([8], True)


def test_words_are_looked_for_as_they_are(session):
    assert numbers(entries(session, 1, text="message 7")) == [7]
    assert numbers(entries(session, 1, text="CODE_3")) == [3]
    assert len(entries(session, 1, text="100%").rows) == 8
    # Neither is a pattern.
    assert numbers(entries(session, 1, text="1%of")) == []
    assert numbers(entries(session, 1, text="code.3")) == []


def test_events_are_counted_by_level(session):
    assert count_by_level(session, 1) == {"info": 5, "warning": 2, "error": 1}
    assert count_by_level(session, 99) == {}
