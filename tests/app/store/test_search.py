from __future__ import annotations

import pytest
from sqlalchemy import select
from told_runs import enter, group, info, outcome

from app.store.deletion import delete_run
from app.store.models import Answer, Prompt
from app.store.monitor import StoreMonitor
from app.store.search import matches

TEXTS = (
    "The quick brown fox jumps",
    "a brown, quick dog; it doesn't jump",
    "Zahlen: 数 und Übermut 42",
    "<b>fox</b> & \"quotes\" 'n' %_ signs",
    "",
)


@pytest.fixture
def run_id(store, tmp_path):
    monitor = StoreMonitor(store, enter(store, tmp_path))
    monitor.run_started(info(tmp_path))
    monitor.trajectories(1, [group(0, [(text, 1.0) for text in TEXTS])])
    monitor.run_finished(outcome(1))
    return monitor.run_id


def found(store, words, model=Answer):
    with store.read() as session:
        wanted = select(model).where(matches(session, model, words)).order_by(model.id)
        return [TEXTS.index(row.text) for row in session.scalars(wanted)]


FINDS = {
    "quick brown": [0, 1],
    "BROWN": [0, 1],
    '"brown fox"': [0],
    '"quick brown" fox': [0],
    "jump": [1],
    "jump*": [0, 1],
    "fox": [0, 3],
    "übermut": [2],
    "数": [2],
    "42": [2],
    "doesn't": [1],
    "quotes": [3],
    "elephant": [],
    "": [],
    "  ": [],
    "* ; -- % _": [],
    '"': [],
}
ORDERS = (
    "NEAR(a b)",
    "text:fox",
    "a AND",
    "fox OR",
    "-fox",
    "^fox",
    "a'b\"c",
    "(((",
    "\0",
    "&|!:*",
)


def test_words_are_found_wherever_they_stand(store, run_id):
    assert {words: found(store, words) for words in FINDS} == FINDS


def test_no_words_are_an_order_to_the_database(store, run_id):
    for words in ORDERS:
        found(store, words)


def test_prompts_are_searched_too(store, run_id):
    with store.read() as session:
        wanted = select(Prompt.key).where(matches(session, Prompt, "question number"))
        assert session.scalars(wanted).all() == ["key-0"]


def test_what_was_deleted_is_not_found(store, run_id, tmp_path):
    delete_run(store, run_id)
    assert found(store, "fox") == []
