"""The result of ``retrograd bench`` as JSON types, with all that is needed to check it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainer.algorithms.comparison import Comparison, Pair
from trainer.algorithms.paired import CONFIDENCE, Change
from trainer.bench import Bench
from trainer.chat.messages import Message
from trainer.gguf.file import GgufFile
from trainer.monitor import Trajectory
from trainer.opening.sides import Side

FORMAT = "retrograd-bench/1"
Record = dict[str, Any]


def record_of(result: Bench) -> Record:
    """Files by name and SHA-256, not by path; no time, so that the same command gives the same
    record."""
    config, drawing = result.config, result.drawing
    names = (result.sides[0].name, result.sides[1].name)
    files = {path for side in result.sides for path in _files(side).values()}
    digests = {path: GgufFile(path).digest() for path in files}
    data = result.questions
    record: Record = {
        "format": FORMAT,
        "run": config.run.name,
        "algorithm": config.run.algorithm,
        "measured": "loss" if drawing is None else "reward",
        "policies": {
            side.name: {
                kind: {"file": path.name, "sha256": digests[path]}
                for kind, path in _files(side).items()
            }
            for side in result.sides
        },
        "data": {
            "file": data.path.name,
            "sha256": hashlib.sha256(data.path.read_bytes()).hexdigest(),
            "used": len(result.comparison.pairs),
            "trained_on": data.trained_on,
        },
    }
    if drawing is not None:
        own = {"greedy": drawing.is_greedy, "samples": drawing.samples, "seed": drawing.seed}
        record["sampling"] = asdict(drawing.settings) | own
    return record | {
        "confidence": CONFIDENCE,
        "figures": _figures(result.comparison),
        "best_reward": result.comparison.best_reward,
        "notes": list(result.notes),
        "questions": [_question(pair, names) for pair in result.comparison.pairs],
    }


def _files(side: Side) -> dict[str, Path]:
    return {"model": side.model} | ({"adapter": side.adapter} if side.adapter else {})


def _figures(comparison: Comparison) -> Record:
    main = "loss" if comparison.lower_is_better else "reward"
    changes = {main: comparison.main, **comparison.others}
    return {name: _figure(change) for name, change in changes.items()}


def _figure(change: Change) -> Record:
    """Without the words better and worse where the figure is neither."""
    record = asdict(change)
    if change.better is None:
        for key in ("better", "worse", "sign_p"):
            del record[key]
    return record


def _question(pair: Pair, names: tuple[str, str]) -> Record:
    content: Record = (
        {"text": pair.content}
        if isinstance(pair.content, str)
        else {"messages": [_message(message) for message in pair.content]}
    )
    means = dict(zip(names, (pair.before, pair.after), strict=True))
    record = {"line": pair.line, **content, "mean": means}
    if pair.answers == ((), ()):
        return record
    answers = zip(names, pair.answers, strict=True)
    return record | {"answers": {name: _answers(own) for name, own in answers}}


def _message(message: Message) -> Record:
    return {"role": message.role, "content": message.content}


def _answers(trajectories: Sequence[Trajectory]) -> list[Record]:
    return [
        {
            "completion": t.answer.text,
            "reward": t.reward,
            "parts": dict(t.parts),
            "tokens": len(t.answer.tokens),
            "truncated": t.answer.truncated,
        }
        for t in trajectories
    ]
