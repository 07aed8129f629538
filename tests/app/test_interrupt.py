"""Signals that arrive while native code calls back into Python, as llama.cpp does to log."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

import pytest

from app.interrupt import Signalled, ended_by_signals, interrupts_that_last
from app.stop import StopOnSignal

COMPARE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


def signal_inside_native_code(number: int, then_wait: float) -> None:
    """The C library sorts two numbers; the signal comes while it asks Python to compare them."""

    @COMPARE
    def compare(_left, _right):
        os.kill(os.getpid(), number)
        return 0

    numbers = (ctypes.c_int * 2)(2, 1)
    ctypes.CDLL(None).qsort(numbers, 2, ctypes.sizeof(ctypes.c_int), compare)
    time.sleep(then_wait)


def test_ctrl_c_inside_native_code_ends_what_comes_after_it(capfd):
    start = time.monotonic()
    with interrupts_that_last(), pytest.raises(KeyboardInterrupt):
        signal_inside_native_code(signal.SIGINT, then_wait=60)
    assert time.monotonic() - start < 10, "the wait was not sat through"
    assert capfd.readouterr().err == ""


def test_the_second_signal_inside_native_code_ends_the_run(capfd):
    with interrupts_that_last(), StopOnSignal(print) as stop:
        stop.progress("generate", 0, 8)
        signal_inside_native_code(signal.SIGINT, then_wait=0)
        assert stop.should_stop()
        with pytest.raises(Signalled) as ended:
            signal_inside_native_code(signal.SIGTERM, then_wait=60)
    assert ended.value.exit_status == 143
    assert "Exception ignored" not in capfd.readouterr().err


def test_other_exceptions_that_python_cannot_raise_are_still_shown(monkeypatch):
    seen: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: seen.append(repr(lost.exc_value)))

    class Broken:
        def __del__(self):
            raise ValueError("broken")

    with interrupts_that_last():
        Broken()
    assert seen == ["ValueError('broken')"]


def test_outside_the_interpreter_is_as_it_was():
    before = sys.unraisablehook
    with interrupts_that_last():
        assert sys.unraisablehook is not before
    assert sys.unraisablehook is before


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_raises_so_that_what_is_open_is_closed(number, status):
    before = signal.getsignal(number)
    with pytest.raises(Signalled) as ended, ended_by_signals():
        os.kill(os.getpid(), number)
    assert ended.value.exit_status == status
    assert signal.getsignal(number) == before


def test_a_signal_that_is_lost_inside_native_code_comes_again(capfd):
    with interrupts_that_last(), ended_by_signals(), pytest.raises(Signalled) as ended:
        signal_inside_native_code(signal.SIGTERM, then_wait=60)
    assert ended.value.exit_status == 143
    assert capfd.readouterr().err == ""


def test_under_nohup_a_closing_terminal_ends_nothing():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_by_signals():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
