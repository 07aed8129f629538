"""A run as plain lines, for log files and terminals without colour or cursor control."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from app import text
from app.terminal.fields import UPDATE_SECONDS, Field, fields_of, legend
from app.terminal.history import SAYS_IF_IT_LEARNS, EvaluationRow, RunHistory, UpdateRow
from app.terminal.samples import Sample, answer_text
from app.terminal.summary import Summary
from trainer.monitor import Event

_SAMPLE_CELLS = 160


class PlainPrinter:
    """Each line says all that is needed to understand it alone, so that it can be searched for."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._fields: Sequence[Field] = ()

    def started(self, history: RunHistory) -> None:
        info = history.info
        name = text.neutralise(info.name)
        self._say(f"run {name}: {info.algorithm.upper()}, {text.counted(info.updates, 'update')}")
        for key, value in info.facts.items():
            self._say(f"  {text.neutralise(key)}: {text.neutralise(value)}")
        self._fields = fields_of(info)
        for key, meaning in legend(info, self._fields):
            self._say(f"  {key}: {meaning}")

    def updated(self, row: UpdateRow) -> None:
        self._say(plain_line(row, self._fields))

    def evaluated(self, row: EvaluationRow) -> None:
        self._say(evaluation_line(row))

    def sampled(self, samples: Sequence[Sample]) -> None:
        before = None
        for sample in samples:
            if sample.prompt != before:
                self._say(f"  prompt: {text.one_line(sample.prompt, _SAMPLE_CELLS)}")
            before = sample.prompt
            shown = text.one_line(answer_text(sample.answer), _SAMPLE_CELLS)
            reward = text.score(sample.answer.reward)
            self._say(f"  {sample.label} answer, reward {reward}: {shown}")

    def happened(self, event: Event) -> None:
        label = "" if event.level == "info" else f"{event.level}: "
        self._say(label + text.neutralise(event.message, keep_newlines=True))

    def finished(self, summary: Summary) -> None:
        self._say(summary.headline)
        for label, value in summary.rows:
            self._say(f"  {label}: {value}")
        for finding in summary.health:
            self._say(f"  health: {finding}")

    def close(self) -> None:
        return

    def _say(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()


def evaluation_line(row: EvaluationRow) -> str:
    when = f"after update {row.update}" if row.update else "before the first update"
    change = "" if row.change is None else f" ({text.signed(row.change)})"
    noun = "prompt" if row.of == "reward" else "text"
    many = text.counted(row.count, noun)
    return f"held-out {row.of} {when}: {text.score(row.figure)}{change}, {many}"


def plain_line(row: UpdateRow, fields: Sequence[Field]) -> str:
    skipped = " skipped, nothing to learn from" if row.status == "skipped" else ""
    parts = []
    for field in fields:
        value = row.values.get(field.key)
        if value is not None:
            parts.append(f"{field.title} {field.write(value)}")
        if field.key in SAYS_IF_IT_LEARNS and row.change is not None and parts:
            parts[-1] += f" ({text.signed(row.change)})"
    return f"update {row.update}/{row.total}{skipped}: " + ", ".join([*parts, *_time(row)])


def _time(row: UpdateRow) -> list[str]:
    total = row.values.get(UPDATE_SECONDS)
    if total is None:
        return []
    split = " + ".join(
        f"{stage} {text.seconds(took)}" for stage, took in row.stage_seconds().items()
    )
    return [text.seconds(total) + (f" = {split}" if split else "")]
