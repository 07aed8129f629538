"""Several runs side by side, as a person reads them in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.store.queries.compare import Course
from app.terminal.runs import STYLES, bars, brief
from app.text import neutralise, one_line, score, signed
from trainer.health.headline import headline_of

_GAP = "  "
_NOTHING = "-"
_LINE_CELLS = 12
_NAME_CELLS = 24
_LEAST_NAME = 8
_VALUE_CHARS = 400
_SHORT_CELLS = 24


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """``seconds`` is None before it has begun; ``courses`` are its metrics by name, ``best_at`` the
    updates at which those that have a best were there first."""

    id: int
    name: str
    algorithm: str
    status: str
    completed: int
    planned: int
    seconds: float | None
    tokens: int
    sparkline: Sequence[float | None]
    courses: Mapping[str, Course]
    best_at: Mapping[str, int | None]

    def best(self, name: str) -> float | None:
        """Of the reward or the loss, on training or held-out prompts; no other metric has one."""
        course, main = self.courses.get(name), headline_of(self.algorithm)
        if course is None or name not in (main.name, main.held_out):
            return None
        return course.lowest if main.lower_is_better else course.highest


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    cells: list[Text]
    right: bool = True

    @property
    def width(self) -> int:
        return max(cell_len(self.title), *(cell.cell_len for cell in self.cells))


def print_comparison(
    runs: Sequence[ComparedRun],
    differences: Sequence[tuple[str, Sequence[str]]],
    metrics: Sequence[str],
    recent: int,
    console: Console,
) -> None:
    """The runs, the keys that they were told differently, and how each of ``metrics`` went; what
    differs is told against the first run."""
    _print(_heads(runs), console)
    console.print()
    console.print(Text("Told differently", "bold"))
    _print_differences([str(run.id) for run in runs], differences, console)
    for name in metrics:
        if any(name in run.courses for run in runs):
            console.print()
            console.print(Text(neutralise(name), "bold"))
            _print(_figures(runs, name, recent), console)


def _heads(runs: Sequence[ComparedRun]) -> list[_Column]:
    return [
        *_names(runs),
        _Column("status", [Text(run.status, STYLES.get(run.status, "")) for run in runs], False),
        _Column("update", [Text(f"{run.completed}/{run.planned}") for run in runs]),
        _Column("time", [Text("" if r.seconds is None else brief(r.seconds)) for r in runs]),
        _Column("tokens", [Text(f"{run.tokens:,}") for run in runs]),
        _Column(
            "/".join(dict.fromkeys(headline_of(run.algorithm).word for run in runs)),
            [Text(bars(run.sparkline, _LINE_CELLS), "cyan") for run in runs],
            False,
        ),
    ]


def _names(runs: Sequence[ComparedRun]) -> list[_Column]:
    return [
        _Column("id", [Text(str(run.id), "bold") for run in runs]),
        _Column("name", [Text(one_line(run.name, _NAME_CELLS)) for run in runs], False),
    ]


def _figures(runs: Sequence[ComparedRun], name: str, recent: int) -> list[_Column]:
    courses = [run.courses.get(name) for run in runs]
    newest = [None if course is None else course.newest for course in courses]
    means = [None if course is None else course.mean for course in courses]
    bests = [run.best(name) for run in runs]
    sign = next((-1 if headline_of(run.algorithm).lower_is_better else 1 for run in runs), 1)
    judged = any(best is not None for best in bests)
    write = score if judged else _three
    better = sign if judged else 0
    columns = [*_names(runs), *_values("last", newest, write, better)]
    if judged:
        columns += _values("best", bests, write, better)
        at = [run.best_at.get(name) for run in runs]
        columns.append(_Column("at", [Text("" if u is None else str(u)) for u in at]))
    title = _mean_title([course.recent for course in courses if course is not None], recent)
    return [*columns, *_values(title, means, write, better)]


def _mean_title(counts: Sequence[int], recent: int) -> str:
    """Of how many values the means are; runs may have fewer than were asked for."""
    found = {count for count in counts if count}
    if not found or found == {recent}:
        return f"mean of {recent}"
    return f"mean of {found.pop()}" if len(found) == 1 else f"mean of up to {max(found)}"


def _values(
    title: str, values: Sequence[float | None], write: Callable[[float], str], better: int
) -> list[_Column]:
    """The values, and how they differ from the first; ``better`` is the sign of what is better."""
    first = values[0]
    changes = [None if value is None or first is None else value - first for value in values]
    return [
        _Column(title, [Text(_NOTHING if v is None else write(v), "bold") for v in values]),
        _Column("", [Text(), *(_change(change, write, better) for change in changes[1:])]),
    ]


def _change(change: float | None, write: Callable[[float], str], better: int) -> Text:
    if change is None:
        return Text()
    gain = change * better
    style = "green" if gain > 0 else "red" if gain < 0 else "dim"
    if write is score:
        return Text(signed(change), style)
    return Text(f"{'+' if change >= 0 else ''}{write(change)}", style)


def _three(value: float) -> str:
    return f"{value:.3g}"


def _print(columns: Sequence[_Column], console: Console) -> None:
    """As wide as the terminal at most: names give way first."""
    name = next(index for index, column in enumerate(columns) if column.title == "name")
    others = sum(column.width for place, column in enumerate(columns) if place != name)
    room = console.width - others - len(_GAP) * (len(columns) - 1)
    widths = [column.width for column in columns]
    widths[name] = max(_LEAST_NAME, min(widths[name], room))
    _line([Text(column.title, "dim") for column in columns], columns, widths, console)
    for row in range(len(columns[0].cells)):
        _line([column.cells[row] for column in columns], columns, widths, console)


def _line(
    cells: Sequence[Text], columns: Sequence[_Column], widths: Sequence[int], console: Console
) -> None:
    line = Text()
    for place, (cell, column, width) in enumerate(zip(cells, columns, widths, strict=True)):
        shown = cell.copy()
        shown.truncate(width, overflow="ellipsis")
        blank = " " * (width - shown.cell_len)
        line.append(_GAP if place else "")
        line.append(blank if column.right else "").append_text(shown)
        line.append("" if column.right else blank)
    line.rstrip()
    console.print(line, no_wrap=True, overflow="crop", crop=True)


def _print_differences(
    ids: Sequence[str], differences: Sequence[tuple[str, Sequence[str]]], console: Console
) -> None:
    """Keys down, runs across; what is too long for that stands below its key, a run a line."""
    if not differences:
        console.print("nothing: their configurations are the same")
        return
    rows = [
        (neutralise(key), [one_line(value, _VALUE_CHARS) for value in values])
        for key, values in differences
    ]
    short = [row for row in rows if max(map(cell_len, row[1])) <= _SHORT_CELLS]
    if short:
        head = max(cell_len(key) for key, _ in short)
        widths = [
            max(cell_len(number), *(cell_len(values[place]) for _, values in short))
            for place, number in enumerate(ids)
        ]
        if head + sum(widths) + len(_GAP) * len(ids) <= console.width:
            _across(ids, short, head, widths, console)
            rows = [row for row in rows if row not in short]
    for key, values in rows:
        console.print(Text(key), no_wrap=True, overflow="ellipsis")
        grid = Table.grid(padding=(0, len(_GAP)))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for number, value in zip(ids, values, strict=True):
            grid.add_row(Text(f"{_GAP}{number}", "bold"), Text(value))
        console.print(grid)


def _across(
    ids: Sequence[str],
    rows: Sequence[tuple[str, Sequence[str]]],
    head: int,
    widths: Sequence[int],
    console: Console,
) -> None:
    for key, values in [("", ids), *rows]:
        line = Text(key + " " * (head - cell_len(key)))
        for value, width in zip(values, widths, strict=True):
            style = "bold" if values is ids else ""
            line.append(_GAP).append(value + " " * (width - cell_len(value)), style)
        line.rstrip()
        console.print(line, no_wrap=True, overflow="crop")
