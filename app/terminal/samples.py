"""The answers worth showing: the best and the worst of those that can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.monitor import GroupRecord, Trajectory


@dataclass(frozen=True, slots=True)
class Sample:
    """An answer, the prompt that it answers, and what it stands for."""

    label: str
    prompt: str
    answer: Trajectory


def choose(update: int, groups: Sequence[GroupRecord]) -> list[Sample]:
    """The best and the worst answer of ``update``, or one where all scored alike: of the group
    whose rewards differ most, or of the whole update where every prompt has one answer."""
    filled = [group for group in groups if group.trajectories]
    if not filled:
        return []
    if all(len(group.trajectories) == 1 for group in filled):
        compared = filled
    else:
        compared = [max(filled, key=_spread)]
    answers = [
        (group.prompt.question, answer) for group in compared for answer in group.trajectories
    ]
    # Of several that are equally good, another one each time.
    best = _one_of([a for a in answers if _reward(a) == max(map(_reward, answers))], update)
    worst = _one_of([a for a in answers if _reward(a) == min(map(_reward, answers))], update)
    if len(answers) == 1:
        return [Sample("only", *best)]
    if _reward(best) == _reward(worst):
        return [Sample("all alike", *best)]
    return [Sample("best", *best), Sample("worst", *worst)]


def is_due(update: int, updates: int) -> bool:
    """The first update, then some six times in a run, and at least every tenth update."""
    return (update - 1) % max(1, min(10, updates // 6)) == 0


def answer_text(trajectory: Trajectory) -> str:
    text = trajectory.answer.text if trajectory.answer.text.strip() else "(an empty answer)"
    return text + (" [cut off]" if trajectory.answer.truncated else "")


def _spread(group: GroupRecord) -> float:
    rewards = [trajectory.reward for trajectory in group.trajectories]
    return max(rewards) - min(rewards)


def _one_of(answers: Sequence[tuple[str, Trajectory]], update: int) -> tuple[str, Trajectory]:
    return answers[update % len(answers)]


def _reward(answer: tuple[str, Trajectory]) -> float:
    return answer[1].reward
