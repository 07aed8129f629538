from __future__ import annotations

import os
import signal

import pytest

from app.interrupt import Signalled
from app.stop import StopOnSignal
from trainer.monitor import Event


def send(number: int) -> None:
    os.kill(os.getpid(), number)


SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]


@pytest.mark.parametrize(("number", "status"), SIGNALS)
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
        assert ("Press Ctrl-C" in said[0]) == (number == signal.SIGINT)
        assert stop.exit_status == status
        with pytest.raises(Signalled) as ended:
            send(signal.SIGTERM)
        assert ended.value.exit_status == 143


@pytest.mark.parametrize(("number", "status"), SIGNALS)
def test_before_the_run_has_started_the_first_signal_ends_it_where_it_is(number, status):
    with StopOnSignal(print) as stop:
        with pytest.raises(Signalled) as ended:
            send(number)
        assert ended.value.exit_status == status
        stop.event(Event("warning", "monitor_losses", "while the run ends"))


def test_a_run_that_has_started_is_ended_by_its_next_call_alone(info):
    with StopOnSignal(print) as stop:
        stop.run_started(info)
        send(signal.SIGTERM)
        with pytest.raises(Signalled):
            stop.progress("prepare", 0, 3)


def test_a_closing_terminal_that_sends_sighup_twice_asks_once():
    with StopOnSignal(print) as stop:
        stop.progress("generate", 0, 8)
        send(signal.SIGHUP)
        send(signal.SIGHUP)
        assert stop.should_stop()


def test_under_nohup_a_closing_terminal_stops_nothing():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopOnSignal(print) as stop:
            stop.progress("generate", 0, 8)
            send(signal.SIGHUP)
            assert not stop.should_stop()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


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
        stop.progress("prepare", 0, 3)
        send(signal.SIGINT)
        with pytest.raises(Signalled):
            send(signal.SIGINT)
        stop.event(Event("warning", "monitor_losses", "while the run ends"))


def test_the_handlers_of_before_come_back():
    before = {number: signal.getsignal(number) for number, _ in SIGNALS}
    with StopOnSignal(print):
        assert signal.getsignal(signal.SIGINT) != before[signal.SIGINT]
    assert {number: signal.getsignal(number) for number in before} == before
