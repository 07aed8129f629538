"""Runs as a trainer tells them to a monitor, without training."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from app.store.database import Store
from app.store.models import Run
from app.store.monitor import StoreMonitor
from app.store.registry import new_run
from trainer.chat.messages import Message, PromptLine
from trainer.monitor import GroupRecord, Monitor, Outcome, RunInfo, Trajectory
from trainer.rollout.answers import Answer

PARAMS = {
    "grpo": {"grpo_epochs": 2, "prompts_per_update": 2, "kl_coefficient": 0.0, "judge": None},
    "observe": {"directory": None, "every": 1, "max_text_chars": 0},
    "audit": {"verbosity_limit": 0.3, "sycophancy_limit": 0.2, "repetition_limit": 0.15},
}


def info(folder: Path, *, updates: int = 20, **changes: Any) -> RunInfo:
    return dataclasses.replace(
        RunInfo(
            name="addition",
            algorithm="grpo",
            model=str(folder / "base.gguf"),
            output=str(folder / "adapter.gguf"),
            updates=updates,
            params=PARAMS,
            facts={"model": "a small one"},
        ),
        **changes,
    )


def trajectory(member: int, text: str, reward: float, **changes: Any) -> Trajectory:
    return dataclasses.replace(
        Trajectory(
            member=member,
            answer=Answer(np.zeros(3, np.int32), np.zeros(3, np.float32), True, text),
            reward=reward,
            reward_raw=reward,
            judge_term=0.0,
            parts={"right": reward},
            advantage=reward - 0.5,
            trained=True,
            skip_reason=None,
        ),
        **changes,
    )


def prompt(number: int) -> PromptLine:
    message = Message("user", f"Question number {number}?")
    return PromptLine(number + 1, (message,), {}, None, f"key-{number}")


def group(number: int, answers: Sequence[tuple[str, float]]) -> GroupRecord:
    told = [trajectory(member, text, reward) for member, (text, reward) in enumerate(answers)]
    return GroupRecord(number, prompt(number), told)


def groups(update: int, *, count: int = 2, size: int = 4, text: str = "") -> list[GroupRecord]:
    """``count`` groups whose texts name update, group and member."""
    return [
        group(g, [(f"answer {update} {g} {m} {text}", m / size) for m in range(size)])
        for g in range(count)
    ]


def values(update: int, **changes: float) -> dict[str, float]:
    named = {name.replace("__", "/"): value for name, value in changes.items()}
    return {
        "reward/mean": update / 100,
        "reward/min": 0.0,
        "reward/max": 0.75,
        "reward/std": 0.3,
        "optimizer/step": 2.0 * update,
        "policy/clip_fraction": 0.1,
        "timing/update_seconds": 1.5,
    } | named


def tell(monitor: Monitor, update: int, **changes: float) -> None:
    """One update."""
    monitor.progress("generate", 8, 8)
    monitor.trajectories(update, groups(update))
    monitor.progress("train", 1, 2)
    monitor.metrics(update, "trained", values(update, **changes))


def outcome(updates: int, **changes: Any) -> Outcome:
    told = Outcome("completed", updates, None, f"completed after {updates} updates")
    return dataclasses.replace(told, **changes)


def enter(store: Store, folder: Path, **columns: Any) -> int:
    """A run's row as the queue leaves it; its id."""
    config = folder / "run.toml"
    config.write_text("[run]\n", encoding="utf-8")
    run = new_run(time.time())
    known = {
        "name": "addition",
        "algorithm": "grpo",
        "model": "base.gguf",
        "source": "terminal",
        "status": "starting",
        "folder": str(folder),
        "config_path": str(config),
        "config_text": "[run]\n",
        "output": str(folder / "adapter.gguf"),
    }
    for name, value in (known | columns).items():
        setattr(run, name, value)
    with store.write() as session:
        session.add(run)
        session.flush()
        return run.id


def whole_run(
    store: Store, folder: Path, updates: int = 5, *, end: bool = True, **changes: Any
) -> StoreMonitor:
    """A run of a few updates, in the store by the time that it is returned. Without its ``end`` it
    is as if its process had been killed then."""
    monitor = StoreMonitor(store, enter(store, folder))
    monitor.run_started(info(folder, **changes))
    for update in range(1, updates + 1):
        tell(monitor, update)
    if end:
        monitor.run_finished(outcome(updates))
    else:
        monitor.settle()
        monitor.abandon()
    return monitor


def the_run(store: Store, run_id: int) -> Run:
    with store.read() as session:
        return session.get_one(Run, run_id)


def wait_until(true: Callable[[], object], seconds: float = 5.0) -> float:
    """Wait for ``true``; the seconds that took. Fails where it does not come."""
    start = time.monotonic()
    while not true():
        assert time.monotonic() - start < seconds, "it did not come"
        time.sleep(0.005)
    return time.monotonic() - start


def plain(row: object, without: Sequence[str] = ()) -> Mapping[str, Any]:
    """The columns of a row."""
    table = type(row).__table__  # type: ignore[attr-defined]
    return {c.name: getattr(row, c.name) for c in table.columns if c.name not in without}
