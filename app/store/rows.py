"""The rows that a thing told comes to: plain values that can be written again after a failure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from app.store.inbox import EventTold, GroupTold, ValuesTold
from app.store.values import number, plain, text
from trainer.chat.messages import PromptLine
from trainer.monitor import Event, Trajectory

Row = dict[str, Any]
_REWARDS_KEPT = 512


@dataclass(slots=True)
class GroupRow:
    """A group with its prompt and answers, whose ids are not known yet."""

    prompt: Row
    group: Row
    answers: list[Row]


@dataclass(slots=True)
class Rows:
    """``metrics`` are (name, update, value); ``run`` are columns of the run, ``segment`` of its
    present segment; ``unfinished`` is an update whose answers turn out not to be trained on."""

    groups: list[GroupRow] = field(default_factory=list)
    metrics: list[tuple[str, int, float | None]] = field(default_factory=list)
    updates: list[Row] = field(default_factory=list)
    events: list[Row] = field(default_factory=list)
    run: Row = field(default_factory=dict)
    segment: Row = field(default_factory=dict)
    unfinished: int | None = None
    count: int = 0


@dataclass(slots=True)
class Tally:
    """What the groups of an update came to."""

    rewards: list[float] = field(default_factory=list)
    trained: int = 0
    tokens: int = 0
    strange: int = 0
    """Answers with numbers that are not finite, and are stored as 0."""

    def add(self, trajectories: Sequence[Trajectory]) -> None:
        for trajectory in trajectories:
            self.rewards.append(trajectory.reward)
            self.trained += trajectory.trained
            self.tokens += len(trajectory.answer.tokens)
            told = trajectory.reward + trajectory.reward_raw + trajectory.judge_term
            self.strange += number(told + trajectory.advantage) is None

    def warning(self, at: float, update: int) -> list[Row]:
        """A line of the journal where there were such answers."""
        if not self.strange:
            return []
        words = (
            f"{self.strange} answers have a reward or an advantage that is not finite, shown as 0"
        )
        return [event_row(EventTold(at, Event("warning", "nonfinite_answer", words, update)))]


def group_row(told: GroupTold, max_text_chars: int) -> GroupRow:
    record = told.record
    rewards = np.array([t.reward for t in record.trajectories], np.float64)
    seen: set[str] = set()
    answers = []
    for trajectory in record.trajectories:
        row = _answer(trajectory, told.with_text, max_text_chars)
        row["duplicate"] = trajectory.answer.text in seen
        row["update"] = told.update
        seen.add(trajectory.answer.text)
        answers.append(row)
    return GroupRow(
        _prompt(record.prompt, max_text_chars),
        {
            "update": told.update,
            "kind": told.kind,
            "number": record.group,
            "size": len(answers),
            "trained": sum(t.trained for t in record.trajectories),
            "reward_mean": _sure(float(rewards.mean())),
            "reward_min": _sure(float(rewards.min())),
            "reward_max": _sure(float(rewards.max())),
            "spread": _sure(float(rewards.std())),
            "tokens_mean": float(np.mean([len(t.answer.tokens) for t in record.trajectories])),
        },
        answers,
    )


def update_row(told: ValuesTold, tally: Tally, steps: int, tokens: int) -> Row:
    """``steps`` and ``tokens`` are those made and sampled by then."""
    names = {"mean": "mean_reward", "min": "reward_min", "max": "reward_max"}
    values = {
        of: told.values.get(f"reward/{of}" if told.kind == "train" else f"eval/{name}")
        for of, name in names.items()
    }
    rewards = sorted(r for r in tally.rewards if number(r) is not None)
    if rewards:
        own = {"mean": float(np.mean(rewards)), "min": rewards[0], "max": rewards[-1]}
        values = {of: own[of] if value is None else value for of, value in values.items()}
    return {
        "update": told.update,
        "kind": told.kind,
        "status": told.status,
        "at": told.at,
        "steps": steps,
        "tokens": tokens,
        "answers": len(tally.rewards),
        "trained": tally.trained if told.status == "trained" else 0,
        "reward_mean": _maybe(values["mean"]),
        "reward_min": _maybe(values["min"]),
        "reward_max": _maybe(values["max"]),
        "rewards": some(rewards),
    }


def event_row(told: EventTold) -> Row:
    event = told.event
    return {
        "at": told.at,
        "level": event.level,
        "code": event.code,
        "message": text(event.message),
        "update": event.update,
        "data": plain(event.data),
    }


def metric_rows(update: int, values: Mapping[str, float]) -> list[tuple[str, int, float | None]]:
    return [(text(name), update, number(value)) for name, value in values.items()]


def _answer(trajectory: Trajectory, with_text: bool, max_text_chars: int) -> Row:
    answer = trajectory.answer
    words = trajectory.judge_words
    return {
        "member": trajectory.member,
        "text": _cut(answer.text, max_text_chars) if with_text else None,
        "chars": len(answer.text),
        "tokens": len(answer.tokens),
        "truncated": answer.truncated,
        "reward": _sure(trajectory.reward),
        "reward_raw": _sure(trajectory.reward_raw),
        "judge_term": _sure(trajectory.judge_term),
        "judge_words": None if words is None else text(words),
        "parts": plain(trajectory.parts),
        "advantage": _sure(trajectory.advantage),
        "trained": trajectory.trained,
        "skip_reason": trajectory.skip_reason,
        "audit": plain(trajectory.audit),
    }


def _prompt(prompt: PromptLine, max_text_chars: int) -> Row:
    messages: list[Row] = []
    for message in prompt.messages:
        kept = _cut(message.content, max_text_chars)
        whole = {"content_chars": len(message.content)} if len(kept) < len(message.content) else {}
        messages.append({"role": message.role, "content": kept} | whole)
    return {
        "key": prompt.key,
        "line": prompt.line,
        "text": "\n\n".join(message["content"] for message in messages),
        "messages": messages,
    }


def _cut(value: str, max_chars: int) -> str:
    return text(value[:max_chars] if max_chars else value)


def _sure(value: float) -> float:
    return number(value) or 0.0


def _maybe(value: float | None) -> float | None:
    return None if value is None else number(value)


def some(ordered: Sequence[float]) -> list[float]:
    """At most 512 of sorted rewards, evenly taken, the first and the last among them; written
    short."""
    places = range(len(ordered))
    if len(ordered) > _REWARDS_KEPT:
        places = np.linspace(0, len(ordered) - 1, _REWARDS_KEPT).round().astype(int).tolist()
    return [float(f"{ordered[place]:.6g}") for place in places]
