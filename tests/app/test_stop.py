from __future__ import annotations

import os
import signal

import pytest

from app.interrupt import Signalled
from app.stop import StopOnSignal


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_asks_and_the_second_ends(number, status):
    said: list[str] = []
    with StopOnSignal(said.append) as stop:
        stop.progress("generate", 1, 8)
        assert not stop.should_stop()
        assert stop.exit_status is None
        send(number)
        assert said == [], "a handler may run in the middle of a write, so it writes nothing"
        assert stop.should_stop()
        stop.progress("train", 1, 8)
        assert len(said) == 1
        assert "keeping the adapter" in said[0]
        assert stop.exit_status == status
        with pytest.raises(Signalled) as ended:
            send(number)
        assert ended.value.exit_status == status


def test_while_nothing_is_worth_keeping_the_first_signal_ends_at_once():
    with StopOnSignal(print) as stop:
        stop.progress("prepare", 1, 3)
        with pytest.raises(Signalled) as ended:
            send(signal.SIGTERM)
    assert ended.value.exit_status == 143


def test_the_handlers_of_before_come_back():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with StopOnSignal(print):
        assert signal.getsignal(signal.SIGINT) != before[signal.SIGINT]
    assert {number: signal.getsignal(number) for number in before} == before
