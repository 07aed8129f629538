from __future__ import annotations

import asyncio

from app.server.security.attempts import FREE, HELD, LONGEST, TOGETHER, Attempts


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
    assert waits[: FREE + 4] == [0.0] * FREE + [1.0, 2.0, 4.0, LONGEST]
    assert max(waits) == LONGEST


def test_others_do_not_wait_for_one_client():
    attempts = Attempts(Clock())
    for _ in range(10):
        attempts.failed("10.0.0.1")
    assert attempts.wait("10.0.0.1") > 0
    assert attempts.wait("10.0.0.2") == 0


def test_many_clients_together_hold_everybody_for_a_bounded_time():
    clock = Clock()
    attempts = Attempts(clock)
    for number in range(TOGETHER + 3):
        attempts.failed(f"10.0.{number}.1")
    assert attempts.wait("10.9.9.9") == 3.0
    for number in range(10_000):
        attempts.failed(f"10.1.{number // 200}.{number % 200}")
    assert attempts.wait("10.9.9.9") == LONGEST


def test_an_attempt_is_held_and_then_looked_at():
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    attempts = Attempts(Clock(), sleep)
    for _ in range(FREE + 9):
        attempts.failed("10.0.0.1")
    assert asyncio.run(attempts.turn("10.0.0.1"))
    assert asyncio.run(attempts.turn("10.0.0.2"))
    assert slept == [LONGEST]


def test_many_at_once_are_no_faster():
    attempts = Attempts(Clock(), lambda _: asyncio.sleep(0.05))
    for _ in range(FREE):
        attempts.failed("10.0.0.1")

    async def try_together():
        return await asyncio.gather(*(attempts.turn("10.0.0.1") for _ in range(20)))

    assert sorted(asyncio.run(try_together())) == [False] * (20 - HELD) + [True] * HELD
    assert sum(asyncio.run(try_together())) == HELD, "those that were held are so no more"


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
