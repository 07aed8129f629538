"""A run that is told of as fast as the store takes it, while pages are open, and one that is told
of slowly, to see how soon a page hears. Used by dashboard.py."""

from __future__ import annotations

import multiprocessing
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Event as Flag

import filled_store
import httpx
import numpy as np

from app.store.database import Store
from app.store.monitor import StoreMonitor
from app.store.registry import new_run
from trainer.chat.messages import Message, PromptLine
from trainer.monitor import GroupRecord, Outcome, RunInfo, Trajectory
from trainer.rollout.answers import Answer

GROUPS = 4
GROUP_SIZE = 8
ROWS_PER_UPDATE = GROUPS * (GROUP_SIZE + 1) + len(filled_store.NAMES) + 1
_CLIENT_SECONDS = 0.5
"""How often a page looks again: pages refresh no faster than that."""


@dataclass(frozen=True, slots=True)
class Rate:
    """``waiting`` is the 95th percentile of how long the clients waited, in seconds."""

    rows: int
    seconds: float
    lost: int
    requests: int
    waiting: float


def ingest(store: Store, url: str, updates: int) -> Rate:
    """Tell of ``updates`` as fast as they are written, while three clients look at the run."""
    told = _TellingOf(store, updates)
    pages = ("", "/metrics/data?name=reward/mean&name=policy/clip_fraction", "/trajectories")
    # What is told is made before, so that only the store's own work is timed.
    groups = [told.groups() for _ in range(min(updates, 50))]
    values = told.values()
    with clients([f"{url}/runs/{told.run_id}{page}" for page in pages]) as waits:
        start = time.perf_counter()
        for update in range(1, updates + 1):
            told.monitor.trajectories(update, groups[update % len(groups)])
            told.monitor.metrics(update, "trained", values)
            if update % 25 == 0:  # as before a checkpoint: what waits must not pile up
                told.monitor.settle()
        told.monitor.settle()
        seconds = time.perf_counter() - start
    told.monitor.run_finished(Outcome("completed", updates, None, ""))
    lost = told.monitor._inbox.lost
    waiting = float(np.quantile(waits, 0.95)) if waits else 0.0
    return Rate(updates * ROWS_PER_UPDATE, seconds, lost, len(waits), waiting)


def hint_seconds(store: Store, url: str, count: int) -> list[float]:
    """From the moment that an update is told to its hint in a page's event stream: the wait for the
    writing thread and the commit are in it."""
    told = _TellingOf(store, count)
    arrived: list[float] = []
    heard = threading.Event()
    ready = threading.Event()

    def listen() -> None:
        with httpx.stream("GET", f"{url}/runs/{told.run_id}/live", timeout=60) as response:
            for line in response.iter_lines():
                ready.set()
                if line.startswith("data:") and '"metrics"' in line:
                    arrived.append(time.perf_counter())
                    heard.set()
                    if len(arrived) == count:
                        return

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    assert ready.wait(30), "the event stream does not open"
    rng = random.Random(0)
    sent = []
    for update in range(1, count + 1):
        time.sleep(rng.uniform(0.2, 0.5))  # at any moment of the threads' turns
        heard.clear()
        sent.append(time.perf_counter())
        told.monitor.metrics(update, "trained", told.values())
        assert heard.wait(30), "no hint came within 30 s"
    listener.join(10)
    told.monitor.run_finished(Outcome("completed", count, None, ""))
    return [b - a for a, b in zip(sent, arrived, strict=True)]


@contextmanager
def clients(addresses: Sequence[str]) -> Iterator[list[float]]:
    """Processes that each ask for one address twice a second; how long they waited each time is
    there in the end."""
    context = multiprocessing.get_context("spawn")
    queue, stop = context.Queue(), context.Event()
    ready = [context.Event() for _ in addresses]
    processes = [
        context.Process(target=_look_again, args=(address, queue, stop, flag), daemon=True)
        for address, flag in zip(addresses, ready, strict=True)
    ]
    for process in processes:
        process.start()
    waits: list[float] = []
    try:
        assert all(flag.wait(60) for flag in ready), "a client cannot reach the server"
        yield waits
    finally:
        stop.set()
        for _ in processes:
            waits += queue.get(timeout=60)
        for process in processes:
            process.join(10)


def _look_again(
    address: str, queue: multiprocessing.Queue[list[float]], stop: Flag, ready: Flag
) -> None:
    waits = []
    with httpx.Client(timeout=60) as client:
        while not stop.is_set():
            start = time.perf_counter()
            client.get(address).raise_for_status()
            waits.append(time.perf_counter() - start)
            ready.set()
            stop.wait(_CLIENT_SECONDS)
    queue.put(waits)


class _TellingOf:
    """A new run with its monitor."""

    def __init__(self, store: Store, updates: int) -> None:
        with store.write() as session:
            run = new_run(time.time())
            run.name, run.algorithm, run.model = "ingested", "grpo", "base.gguf"
            run.source, run.status = "terminal", "starting"
            run.folder = run.config_path = "/nowhere"
            run.config_text = ""
            session.add(run)
            session.flush()
            self.run_id = run.id
        self._rng = random.Random(1)
        self.monitor = StoreMonitor(store, self.run_id)
        params = {"observe": {"every": 1, "max_text_chars": 0}, "grpo": {"kl_coefficient": 0.0}}
        info = RunInfo("ingested", "grpo", "/nowhere/base.gguf", "/nowhere/a", updates, params, {})
        self.monitor.run_started(info)

    def groups(self) -> list[GroupRecord]:
        return [
            GroupRecord(number, self._prompt(number), [self._answer(m) for m in range(GROUP_SIZE)])
            for number in range(GROUPS)
        ]

    def values(self) -> dict[str, float]:
        return {name: self._rng.random() for name in filled_store.NAMES}

    def _prompt(self, number: int) -> PromptLine:
        message = Message("user", filled_store.words(self._rng, 30))
        return PromptLine(number + 1, (message,), {}, None, f"{self._rng.getrandbits(64):x}")

    def _answer(self, member: int) -> Trajectory:
        length = min(400, max(3, int(self._rng.lognormvariate(4.0, 0.8))))
        tokens = np.zeros(length, np.int32)
        text = filled_store.words(self._rng, length)
        return Trajectory(
            member=member,
            answer=Answer(tokens, np.zeros(length, np.float32), True, text),
            reward=self._rng.random(),
            reward_raw=0.0,
            judge_term=0.0,
            parts={"correct": 0.5},
            advantage=0.1,
            trained=True,
            skip_reason=None,
        )
