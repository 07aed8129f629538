"""Runs to read: answers told to a monitor, as a trainer would tell them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import select
from told_runs import PARAMS, enter, info, outcome, prompt, trajectory, values

from app.store.database import Store
from app.store.models import Answer
from app.store.monitor import StoreMonitor
from trainer.chat.messages import Message, PromptLine
from trainer.monitor import GroupRecord, Trajectory
from trainer.rollout.answers import Answer as Sampled

Told = Sequence[GroupRecord]


def answer(
    member: int, text: str, reward: float, *, tokens: int = 3, cut: bool = False, **changes: Any
) -> Trajectory:
    sampled = Sampled(np.zeros(tokens, np.int32), np.zeros(tokens, np.float32), not cut, text)
    return trajectory(member, text, reward, answer=sampled, **changes)


def unlearned(member: int, text: str, reward: float, reason: str, **changes: Any) -> Trajectory:
    """An answer that was left out of the loss."""
    return answer(member, text, reward, trained=False, skip_reason=reason, advantage=0.0, **changes)


def group(number: int, *answers: Trajectory, key: int | None = None) -> GroupRecord:
    return GroupRecord(number, prompt(number if key is None else key), answers)


def question(number: int, *messages: tuple[str, str]) -> PromptLine:
    told = tuple(Message(role, content) for role, content in messages)  # type: ignore[arg-type]
    return PromptLine(number + 1, told, {}, None, f"asked-{number}")


def held_out(*texts: str) -> list[GroupRecord]:
    return [
        group(number, unlearned(0, text, number / 4, "evaluation"), key=100 + number)
        for number, text in enumerate(texts)
    ]


def read_run(
    store: Store,
    folder: Path,
    updates: Mapping[int, Told],
    *,
    evaluations: Mapping[int, Told] | None = None,
    skipped: Sequence[int] = (),
    begun: Told = (),
    end: bool = True,
    observe: Mapping[str, Any] | None = None,
    **changes: Any,
) -> int:
    """Its id. ``begun`` are the answers of an update whose numbers are not there yet."""
    params = PARAMS | {"observe": PARAMS["observe"] | (observe or {})}
    monitor = StoreMonitor(store, enter(store, folder, **changes))
    algorithm = changes.get("algorithm", "grpo")
    monitor.run_started(info(folder, params=params, algorithm=algorithm))
    for update in sorted({*updates, *(evaluations or {})}):
        if update in updates:
            monitor.trajectories(update, updates[update])
            status = "skipped" if update in skipped else "trained"
            monitor.metrics(update, status, values(update) | _rewards(updates[update]))
        if evaluations and update in evaluations:
            monitor.evaluation(update, evaluations[update], {"eval/mean_reward": 0.5})
    last = max(updates, default=0)
    if begun:
        monitor.trajectories(last + 1, begun)
    if end:
        monitor.run_finished(outcome(last))
    else:
        monitor.settle()
        monitor.abandon()
    assert isinstance(monitor._run_id, int)
    return monitor._run_id


def _rewards(told: Told) -> dict[str, float]:
    rewards = [one.reward for record in told for one in record.trajectories]
    if not rewards:
        return {}
    mean = sum(rewards) / len(rewards)
    return {"reward/mean": mean, "reward/min": min(rewards), "reward/max": max(rewards)}


def numbered(store: Store, run_id: int) -> dict[str, int]:
    """The ids of a run's answers, by their texts."""
    rows = select(Answer.text, Answer.id).where(Answer.run_id == run_id)
    with store.read() as session:
        return {text: number for text, number in session.execute(rows) if text is not None}
