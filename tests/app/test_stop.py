from __future__ import annotations

import os
import signal

import pytest

from app.interrupt import Signalled
from app.stop import StopOnSignal
from trainer.monitor import Event


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


NEXT_CALLS = {
    "progress": lambda stop: stop.progress("prepare", 2, 3),
    "the first answers": lambda stop: stop.progress("generate", 0, 8),
    "event": lambda stop: stop.event(Event("info", "settings", "threads 2")),
    "should_stop": lambda stop: stop.should_stop(),
}


@pytest.mark.parametrize("call", NEXT_CALLS)
def test_while_nothing_is_worth_keeping_the_next_call_after_a_signal_ends_the_run(call):
    said: list[str] = []
    with StopOnSignal(said.append) as stop:
        stop.progress("prepare", 1, 3)
        send(signal.SIGTERM)
        with pytest.raises(Signalled) as ended:
            NEXT_CALLS[call](stop)
        stop.event(Event("warning", "monitor_losses", "while the run ends"))
    assert ended.value.exit_status == 143
    assert said == []


def test_the_second_signal_ends_a_run_that_prepares_where_it_is():
    with StopOnSignal(print) as stop:
        send(signal.SIGINT)
        with pytest.raises(Signalled):
            send(signal.SIGINT)
        stop.event(Event("warning", "monitor_losses", "while the run ends"))


def test_the_handlers_of_before_come_back():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with StopOnSignal(print):
        assert signal.getsignal(signal.SIGINT) != before[signal.SIGINT]
    assert {number: signal.getsignal(number) for number in before} == before
