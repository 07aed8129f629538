"""The records of ``observe.jsonl``: from what the trainer says to JSON types.

JSON has no NaN and no infinity. Where a number is not finite, the record holds null in its place
and names it in ``nonfinite``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any

import numpy as np

from trainer.chat.messages import PromptLine
from trainer.monitor.protocol import RunInfo, Trajectory, UpdateStatus

VERSION = 1

Json = bool | int | float | str | None | list["Json"] | dict[str, "Json"]
Record = dict[str, Any]


def run_record(info: RunInfo) -> Record:
    body = {
        "algorithm": info.algorithm,
        "model": info.model,
        "params": info.params,
        "resumed_from_update": info.resumed_from_update,
        "run_id": info.run_id,
    }
    return _record("run", body)


def prompt_record(prompt: PromptLine, max_text_chars: int) -> Record:
    messages = [
        {"role": message.role, **_text("content", message.content, max_text_chars)}
        for message in prompt.messages
    ]
    return _record("prompt", {"key": prompt.key, "messages": messages})


def rollout_record(
    update: int,
    group: int,
    prompt_key: str,
    trajectory: Trajectory,
    *,
    with_text: bool,
    max_text_chars: int,
) -> Record:
    """``completion`` is null without its text; ``tokens`` is the answer's length in tokens."""
    answer = trajectory.answer
    body: Record = {
        "update": update,
        "group": group,
        "member": trajectory.member,
        "prompt": prompt_key,
        "completion": None,
        "tokens": len(answer.tokens),
        "truncated": answer.truncated,
        "reward": trajectory.reward,
        "reward_raw": trajectory.reward_raw,
        "judge_term": trajectory.judge_term,
        "parts": trajectory.parts,
        "advantage": trajectory.advantage,
        "trained": trajectory.trained,
        "skip_reason": trajectory.skip_reason,
        "audit": trajectory.audit,
        "judge_words": trajectory.judge_words,
    }
    if with_text:
        body |= _text("completion", answer.text, max_text_chars)
    return _record("rollout", body)


def update_record(update: int, status: UpdateStatus, metrics: Mapping[str, float]) -> Record:
    finite, nonfinite = _finite(metrics)
    body = {"update": update, "status": status, "metrics": finite}
    return _record("update", body | ({"nonfinite": nonfinite} if nonfinite else {}))


def evaluation_record(update: int, metrics: Mapping[str, float]) -> Record:
    finite, nonfinite = _finite(metrics)
    body = {"update": update, "metrics": finite}
    return _record("evaluation", body | ({"nonfinite": nonfinite} if nonfinite else {}))


def _record(kind: str, body: Mapping[str, Any]) -> Record:
    finite, nonfinite = _finite(body)
    head = {"v": VERSION, "time": datetime.now(UTC).isoformat(), "type": kind}
    return head | finite | ({"nonfinite": nonfinite} if nonfinite else {})


def _text(key: str, text: str, max_chars: int) -> Record:
    """The text under ``key``; where it was cut, ``<key>_chars`` keeps its whole length."""
    if max_chars == 0 or len(text) <= max_chars:
        return {key: text}
    return {key: text[:max_chars], f"{key}_chars": len(text)}


def _finite(values: Mapping[str, Any]) -> tuple[Record, list[str]]:
    nonfinite: list[str] = []
    finite = {str(key): _plain(value, str(key), nonfinite) for key, value in values.items()}
    return finite, nonfinite


def _plain(value: object, path: str, nonfinite: list[str]) -> Json:
    """``value`` in JSON types; the paths of numbers that are not finite join ``nonfinite``."""
    match value:
        case None | bool() | int() | str():
            return value
        case float() | np.floating():
            if math.isfinite(value):
                return float(value)
            nonfinite.append(path)
            return None
        case np.bool_() | np.integer():
            return value.item()
        case PurePath():
            return str(value)
        case Mapping():
            return {
                str(key): _plain(item, f"{path}.{key}", nonfinite) for key, item in value.items()
            }
        case Sequence() if not isinstance(value, bytes | bytearray):
            return [_plain(item, f"{path}.{i}", nonfinite) for i, item in enumerate(value)]
    raise TypeError(f"{path} is a {type(value).__name__}, which JSON has no form for")
