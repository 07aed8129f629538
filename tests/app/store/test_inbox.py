from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from told_runs import group, outcome, prompt, trajectory

from app.store.inbox import EndTold, EventTold, GroupTold, Inbox, RunTold, ValuesTold
from trainer.monitor import Event, GroupRecord
from trainer.rollout.answers import Answer


def values(update: int) -> ValuesTold:
    return ValuesTold(0.0, update, "train", "trained", {"a": 1.0})


def answers(size: int) -> GroupTold:
    return GroupTold(0.0, 1, "train", group(0, [("x" * size, 1.0)]), True)


def test_first_in_first_out_in_pieces():
    inbox = Inbox()
    for update in range(1, 6):
        inbox.put(values(update))
    assert [told.update for told in inbox.take(rows=3, size=10_000, wait=0)] == [1, 2]
    assert [told.update for told in inbox.take(rows=100, size=10_000, wait=0)] == [3, 4, 5]
    assert inbox.take(rows=1, size=1, wait=0) == []


def test_answers_find_no_room_before_numbers_do_and_the_end_always_does():
    inbox = Inbox(for_answers=1300, in_all=2300)
    inbox.put(answers(900))
    assert inbox.lost == 2, "a group and its answer"
    inbox.put(answers(100))
    for update in range(1, 5):
        inbox.put(values(update))
    assert inbox.lost == 2 + 2 * 2
    inbox.put(EndTold(0.0, outcome(1)))
    kinds = [type(told) for told in inbox.take(rows=100, size=10_000, wait=0)]
    assert kinds == [GroupTold, ValuesTold, ValuesTold, EndTold]
    inbox.put(answers(100))
    assert inbox.lost == 6, "there is room again"


@pytest.mark.parametrize("with_text", [True, False])
def test_an_answer_counts_with_all_that_it_holds(with_text):
    """Also where its text is not to be stored: the record holds it until it is written."""
    tokens = np.zeros(5000, np.int32)
    answer = Answer(tokens, np.zeros(5000, np.float32), True, "数" * 3000)
    told = trajectory(0, "", 1.0, answer=answer, judge_words="w" * 2000, parts={"a": 1.0})
    record = GroupRecord(0, prompt(0), [told])
    size = GroupTold(0.0, 1, "train", record, with_text).size
    assert 40_000 + 6_000 + 2_000 < size < 50_000


def test_columns_of_the_run_are_no_rows():
    inbox = Inbox(in_all=0)
    inbox.put(RunTold(0.0, {"planned": 1}))
    inbox.put(EventTold(0.0, Event("info", "a", "b")))
    assert inbox.lost == 1


def test_somebody_may_wait_until_all_is_settled():
    inbox = Inbox()
    assert inbox.wait_until_settled(0.0)
    inbox.put(values(1))
    inbox.put(values(2))
    assert not inbox.wait_until_settled(0.01)

    def settle() -> None:
        time.sleep(0.05)
        inbox.settle(1)
        inbox.put(values(3))  # which nobody waits for
        inbox.settle(1)

    thread = threading.Thread(target=settle)
    thread.start()
    assert inbox.wait_until_settled(5.0)
    thread.join()


def test_what_comes_wakes_who_takes():
    inbox = Inbox()
    threading.Timer(0.05, inbox.put, [values(1)]).start()
    start = time.monotonic()
    assert len(inbox.take(rows=1, size=1, wait=5.0)) == 1
    assert time.monotonic() - start < 1
    inbox.close()
    assert inbox.take(rows=1, size=1, wait=5.0) == []
    assert time.monotonic() - start < 2
