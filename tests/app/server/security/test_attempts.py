from __future__ import annotations

from app.server.security.attempts import FREE, LONGEST, TOGETHER, Attempts


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def test_after_some_wrong_tokens_a_client_waits_ever_longer():
    clock = Clock()
    attempts = Attempts(clock)
    waits = []
    for _ in range(12):
        waits.append(attempts.wait("10.0.0.1"))
        clock.now += waits[-1]
        attempts.failed("10.0.0.1")
    assert waits[: FREE + 5] == [0.0] * FREE + [1.0, 2.0, 4.0, 8.0, 16.0]
    assert max(waits) == LONGEST


def test_others_do_not_wait_for_one_client():
    attempts = Attempts(Clock())
    for _ in range(10):
        attempts.failed("10.0.0.1")
    assert attempts.wait("10.0.0.1") > 0
    assert attempts.wait("10.0.0.2") == 0


def test_many_clients_together_are_slowed_to_one_attempt_each_second():
    clock = Clock()
    attempts = Attempts(clock)
    for number in range(TOGETHER + 5):
        attempts.failed(f"10.0.{number}.1")
    assert attempts.wait("10.9.9.9") == 5.0
    clock.now += 5
    assert attempts.wait("10.9.9.9") == 0


def test_a_network_of_64_bits_is_one_client():
    attempts = Attempts(Clock())
    for number in range(FREE):
        attempts.failed(f"2001:db8:0:1::{number:x}")
    assert attempts.wait("2001:db8:0:1:ffff::1") > 0
    assert attempts.wait("2001:db8:0:2::1") == 0


def test_the_right_token_and_time_forget_the_wrong_ones():
    clock = Clock()
    attempts = Attempts(clock)
    for _ in range(FREE):
        attempts.failed("10.0.0.1")
    attempts.succeeded("10.0.0.1")
    assert attempts.wait("10.0.0.1") == 0
    for _ in range(10):
        attempts.failed("10.0.0.1")
    clock.now += 3600
    attempts.failed("10.0.0.1")
    assert attempts.wait("10.0.0.1") == 0


def test_no_number_of_clients_fills_the_memory():
    attempts = Attempts(Clock())
    for number in range(10_000):
        attempts.failed(f"name-{number}")
    assert len(attempts._clients) <= 4096
