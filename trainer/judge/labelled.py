"""Answers that people have judged already, to see whether a judge agrees with them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.chat.dataset import read_prompts
from trainer.chat.messages import PromptLine
from trainer.judge.questions import GroupToJudge
from trainer.judge.scores import kendall_tau

_EXAMPLE = '{"completion": "4", "label": 1}'


@dataclass(frozen=True, slots=True)
class LabelledGroup:
    """Answers to a prompt, and how good each of them is on any scale, or None where nobody said."""

    prompt: PromptLine
    answers: Sequence[str]
    labels: Sequence[float | None]

    def to_judge(self) -> GroupToJudge:
        return GroupToJudge(self.prompt, self.answers, [1.0] * len(self.answers))

    def agreement(self, scores: Sequence[float]) -> float | None:
        """Kendall's tau of ``scores`` with the labels; None where those rank nothing."""
        pairs = [(e, s) for e, s in zip(self.labels, scores, strict=True) if e is not None]
        return kendall_tau([label for label, _ in pairs], [score for _, score in pairs])


def read_labelled(path: Path) -> list[LabelledGroup]:
    """Read a prompt file whose lines also hold ``answers``: a list of texts, or of objects with
    ``completion`` and perhaps ``label``, a number that is larger for a better answer.

    Raises DataError with the file and its bad lines.
    """
    lines = read_prompts(path, objection=lambda line: _objection(line.metadata.get("answers")))
    return [_group(line) for line in lines]


def _objection(answers: object) -> str | None:
    if not isinstance(answers, list) or len(answers) < 2:
        return f'"answers" must be a list of two or more texts, or of objects such as {_EXAMPLE}'
    reasons = (_objection_to(number, item) for number, item in enumerate(answers, start=1))
    return next((reason for reason in reasons if reason is not None), None)


def _objection_to(number: int, item: object) -> str | None:
    if isinstance(item, str):
        return None
    if not isinstance(item, dict):
        return f"answer {number} must be a text, or an object such as {_EXAMPLE}"
    unknown = [key for key in item if key not in ("completion", "label")]
    if unknown:
        return f'answer {number} has the unknown key "{unknown[0]}"; one looks like {_EXAMPLE}'
    if not isinstance(item.get("completion"), str):
        return f'answer {number}: "completion" must be a text'
    label = item.get("label", 0)
    if isinstance(label, bool) or not isinstance(label, int | float) or not math.isfinite(label):
        return f'answer {number}: "label" must be a number, larger for a better answer'
    return None


def _group(line: PromptLine) -> LabelledGroup:
    items = [{"completion": i} if isinstance(i, str) else i for i in line.metadata["answers"]]
    labels = [float(item["label"]) if "label" in item else None for item in items]
    return LabelledGroup(line, [item["completion"] for item in items], labels)
