"""The updates as aligned rows, as many columns as the terminal has room for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.text import Text

from app.terminal.fields import UPDATE_SECONDS, Field, fields_of, own_keys
from app.terminal.history import SAYS_IF_IT_LEARNS, TIMED, UpdateRow
from app.text import score, seconds, signed
from trainer.monitor import RunInfo

_SHORT_STAGES = {
    "generate": "gen",
    "reward": "rew",
    "judge": "jud",
    "score": "sco",
    "train": "trn",
}
_CHANGE_WIDTH = 7


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a run that fit."""

    fields: tuple[Field, ...]
    stages: tuple[str, ...]
    update_width: int
    gap: str
    wide: bool

    @property
    def width(self) -> int:
        return len(self.header().plain)

    def header(self) -> Text:
        cells = [Text("update".rjust(self.update_width))]
        for field in self.fields:
            cells.append(Text(self._title(field).rjust(self._width(field))))
            if field.key in SAYS_IF_IT_LEARNS:
                cells.append(Text("change".rjust(_CHANGE_WIDTH)))
        cells.append(Text("time".rjust(5)))
        if self.stages:
            cells.append(Text(self._stage_titles()))
        return self._join(cells, "dim")

    def row(self, row: UpdateRow) -> Text:
        cells = [Text(f"{row.update}/{row.total}".rjust(self.update_width), "bold")]
        for field in self.fields:
            cells.append(self._cell(field, row))
            if field.key in SAYS_IF_IT_LEARNS:
                cells.append(_change(row))
        cells.append(Text(_written(row.values.get(UPDATE_SECONDS), seconds).rjust(5)))
        if self.stages:
            cells.append(Text(self._split(row).rjust(len(self._stage_titles())), "dim"))
        return self._join(cells, "")

    def _join(self, cells: Sequence[Text], style: str) -> Text:
        line = Text(" ", style=style)
        for index, cell in enumerate(cells):
            line.append(self.gap if index else "").append_text(cell)
        return line

    def _title(self, field: Field) -> str:
        return field.title if self.wide else field.narrow

    def _width(self, field: Field) -> int:
        return max(field.width, len(self._title(field)))

    def _cell(self, field: Field, row: UpdateRow) -> Text:
        value = row.values.get(field.key)
        written = _written(value, field.write).rjust(self._width(field))
        return Text(written, _style(field, value))

    def _stage_titles(self) -> str:
        if self.wide:
            return "= " + " + ".join(stage.rjust(5) for stage in self.stages)
        return "/".join(_SHORT_STAGES[stage] for stage in self.stages)

    def _split(self, row: UpdateRow) -> str:
        spent = row.stage_seconds()
        if self.wide:
            parts = (seconds(spent[stage])[:-1] if stage in spent else "-" for stage in self.stages)
            pairs = zip(parts, self.stages, strict=True)
            return "= " + " + ".join(part.rjust(max(5, len(stage))) for part, stage in pairs)
        # Of the whole update: what is missing to 100% went into other things, such as the swap.
        total = row.values.get(UPDATE_SECONDS) or math.nan
        shares = [100 * spent.get(stage, 0.0) / total for stage in self.stages]
        if not all(map(math.isfinite, shares)):
            return ""
        return "/".join(f"{share:.0f}" for share in shares) + "%"


def fit(info: RunInfo, width: int) -> Columns:
    """The richest layout for the updates of a run that is at most ``width`` columns wide."""
    present = fields_of(info)
    stages = tuple(name for name in TIMED if name != "judge" or own_keys(info).get("judge"))
    if info.algorithm == "sft":
        stages = ()  # its updates have one
    update_width = max(len("update"), len(f"{info.updates}/{info.updates}"))
    layouts = [
        Columns(
            tuple(field for field in present if field.rank <= rank),
            shown if wide else tuple(stage for stage in shown if stage in _SHORT_STAGES),
            update_width,
            gap,
            wide,
        )
        for shown in (stages, ())
        for wide, gap in ((True, "  "), (False, "  "), (False, " "))
        for rank in _ranks(wide)
    ]
    layouts.sort(key=_richness, reverse=True)
    return next((layout for layout in layouts if layout.width <= width), layouts[-1])


def _ranks(wide: bool) -> range:
    # Long titles are worth having only where they cost no column but the per-answer KL.
    return range(4, 2, -1) if wide else range(4, -1, -1)


def _richness(layout: Columns) -> tuple[int, int, bool, int]:
    return bool(layout.stages), len(layout.fields), layout.wide, len(layout.gap)


def _change(row: UpdateRow) -> Text:
    if row.status == "skipped":
        return Text("skipped", "yellow")
    if row.change is None:
        return Text(" " * _CHANGE_WIDTH)
    gain = -row.change if "sft/loss" in row.values else row.change
    style = "green" if gain > 0 else "red" if gain < 0 else "dim"
    return Text(signed(row.change).rjust(_CHANGE_WIDTH), style)


def _style(field: Field, value: float | None) -> str:
    if value is not None and not math.isfinite(value):
        return "bold red"
    if value is not None and not field.low <= value <= field.high:
        return "yellow"
    return "bold" if field.write is score else ""


def _written(value: float | None, write: Callable[[float], str]) -> str:
    return "-" if value is None else write(value)
