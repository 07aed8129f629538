from __future__ import annotations

import pytest

from trainer.errors import ConfigError, RetrogradError
from trainer.monitor import CompositeMonitor, Event, Outcome, SilentMonitor

DONE = Outcome(status="completed", updates=1, output=None, message="")


class Recorder(SilentMonitor):
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.events: list[Event] = []
        self.outcomes: list[Outcome] = []

    def run_started(self, info):
        self.calls.append("run_started")

    def progress(self, stage, done, total):
        self.calls.append(f"progress {stage} {done}/{total}")

    def trajectories(self, update, groups):
        self.calls.append(f"trajectories {update}")

    def metrics(self, update, status, values):
        self.calls.append(f"metrics {update} {status}")

    def evaluation(self, update, groups, values):
        self.calls.append(f"evaluation {update} of {len(groups)}")

    def event(self, event):
        self.events.append(event)

    def run_finished(self, outcome):
        self.outcomes.append(outcome)


class Unstartable(SilentMonitor):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def run_started(self, info):
        raise self.error


class FullDisk(SilentMonitor):
    def metrics(self, update, status, values):
        raise OSError("no space left")

    def should_stop(self):
        raise OSError("no space left")


class Deaf(SilentMonitor):
    """Breaks on the news that something broke."""

    def event(self, event):
        raise RuntimeError("deaf")


class Stopper(SilentMonitor):
    def should_stop(self):
        return True


def test_every_monitor_hears_every_call_in_order(info):
    first, second = Recorder(), Recorder()
    both = CompositeMonitor([first, second])
    both.run_started(info)
    both.progress("generate", 1, 8)
    both.trajectories(1, [])
    both.metrics(1, "trained", {})
    both.evaluation(1, [], {})
    both.run_finished(DONE)
    expected = ["run_started", "progress generate 1/8", "trajectories 1", "metrics 1 trained"]
    expected.append("evaluation 1 of 0")
    assert first.calls == second.calls == expected
    assert first.outcomes == [DONE]
    assert first.events == []


def test_a_monitor_that_cannot_start_fails_the_run_and_the_started_ones_are_finished(info):
    started, never = Recorder(), Recorder()
    monitors = CompositeMonitor([started, Unstartable(OSError("disk gone")), never])
    with pytest.raises(RetrogradError, match=r"Unstartable could not start.*disk gone"):
        monitors.run_started(info)
    assert [outcome.status for outcome in started.outcomes] == ["failed"]
    assert "disk gone" in started.outcomes[0].message
    assert never.calls == []
    assert never.outcomes == []


def test_an_error_written_for_the_user_is_passed_on_as_it_is(info):
    error = ConfigError("observe.directory cannot be written")
    with pytest.raises(ConfigError) as caught:
        CompositeMonitor([Unstartable(error)]).run_started(info)
    assert caught.value is error


def test_ctrl_c_while_starting_finishes_the_started_monitors(info):
    started = Recorder()
    with pytest.raises(KeyboardInterrupt):
        CompositeMonitor([started, Unstartable(KeyboardInterrupt())]).run_started(info)
    assert [outcome.status for outcome in started.outcomes] == ["failed"]


def test_a_monitor_that_breaks_later_is_reported_once_and_counted_to_the_end(info):
    healthy = Recorder()
    monitors = CompositeMonitor([FullDisk(), healthy])
    monitors.run_started(info)
    for update in (1, 2, 3):
        monitors.metrics(update, "trained", {})
    assert [event.code for event in healthy.events] == ["monitor_failed"]
    assert "no space left" in healthy.events[0].message
    assert healthy.calls[1:] == ["metrics 1 trained", "metrics 2 trained", "metrics 3 trained"]

    monitors.run_finished(DONE)
    assert monitors.losses == {"FullDisk": 3}
    assert healthy.events[-1].code == "monitor_losses"
    assert healthy.events[-1].data == {"losses": {"FullDisk": 3}}
    assert "missed 3" in healthy.events[-1].message


def test_two_monitors_that_break_on_each_others_news_do_not_stop_the_run(info):
    healthy = Recorder()
    monitors = CompositeMonitor([Deaf(), FullDisk(), healthy])
    monitors.run_started(info)
    monitors.metrics(1, "trained", {})
    assert monitors.losses == {"Deaf": 1, "FullDisk": 1}
    told = {event.data["monitor"] for event in healthy.events}
    assert told == {"Deaf", "FullDisk"}


def test_one_wish_to_stop_is_enough_and_a_broken_monitor_has_none():
    assert CompositeMonitor([SilentMonitor(), Stopper()]).should_stop()
    assert not CompositeMonitor([FullDisk(), SilentMonitor()]).should_stop()


def test_ctrl_c_inside_a_monitor_is_not_swallowed():
    class Interrupting(SilentMonitor):
        def should_stop(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        CompositeMonitor([Interrupting()]).should_stop()


class ComesAndGoes(Recorder):
    """Takes no metrics while its disk is full, and everything else always."""

    full = True

    def metrics(self, *_):
        if self.full:
            raise OSError(28, "No space left on device")


def test_the_end_of_a_monitors_trouble_is_told_as_well(info):
    healthy, other = Recorder(), ComesAndGoes()
    monitors = CompositeMonitor([other, healthy])
    monitors.run_started(info)
    for full in (True, True, False, False, True, False):
        other.full = full
        monitors.metrics(1, "trained", {})
        monitors.settle()
    codes = [event.code for event in healthy.events]
    assert codes == ["monitor_failed", "monitor_again"] * 2
    assert healthy.events[1].message == "ComesAndGoes records again; it has missed 2 so far."


def test_what_comes_and_goes_all_the_time_is_not_told_each_time(info):
    healthy, other = Recorder(), ComesAndGoes()
    monitors = CompositeMonitor([other, healthy])
    monitors.run_started(info)
    for update in range(1000):
        other.full = update % 2 == 0
        monitors.metrics(update, "trained", {})
    assert len(healthy.events) == 6
    assert monitors.losses == {"ComesAndGoes": 500}
