"""The answers worth showing: the best and the worst of the group that differs most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.monitor import GroupRecord, Trajectory


@dataclass(frozen=True, slots=True)
class Sample:
    """``answers`` are (label, answer) pairs: best and worst, or one where all scored alike."""

    prompt: str
    answers: tuple[tuple[str, Trajectory], ...]


def choose(groups: Sequence[GroupRecord]) -> Sample | None:
    """None where no group has an answer."""
    filled = [group for group in groups if group.trajectories]
    if not filled:
        return None
    group = max(filled, key=_spread)
    best = max(group.trajectories, key=lambda trajectory: trajectory.reward)
    worst = min(group.trajectories, key=lambda trajectory: trajectory.reward)
    if best.reward == worst.reward:
        return Sample(group.prompt.question, (("all alike", best),))
    return Sample(group.prompt.question, (("best", best), ("worst", worst)))


def is_due(update: int, updates: int) -> bool:
    """The first update, then some six times in a run, and at least every tenth update."""
    return (update - 1) % max(1, min(10, updates // 6)) == 0


def answer_text(trajectory: Trajectory) -> str:
    text = trajectory.answer.text if trajectory.answer.text.strip() else "(an empty answer)"
    return text + (" [cut off]" if trajectory.answer.truncated else "")


def _spread(group: GroupRecord) -> float:
    rewards = [trajectory.reward for trajectory in group.trajectories]
    return max(rewards) - min(rewards)
