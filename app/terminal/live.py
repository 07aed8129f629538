"""A run on a terminal: rows that scroll, and below them bars that move."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from app import text
from app.terminal.fields import legend
from app.terminal.history import EvaluationRow, RunHistory, UpdateRow
from app.terminal.plain import evaluation_line
from app.terminal.samples import Sample, answer_text
from app.terminal.summary import PROSE, Summary
from app.terminal.table import Columns, fit
from trainer.monitor import Event

_VERBS = {
    "prepare": "preparing",
    "generate": "generating",
    "reward": "rewarding",
    "score": "scoring",
    "train": "training",
    "evaluate": "evaluating",
    "merge": "merging",
}
_UNITS = {"prepare": "steps", "train": "steps"}
_ROWS_PER_HEADER = 20
_LEVEL_STYLES = {"info": "dim", "warning": "yellow", "error": "bold red"}
_SPARKS = "▁▂▃▄▅▆▇█"


class LivePrinter:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._history: RunHistory | None = None
        self._columns: Columns | None = None
        self._fitted_to = 0  # the terminal's width that the columns were chosen for
        self._rows_until_header = 0
        self._live = Live(
            console=console,
            get_renderable=self._bars,
            refresh_per_second=4,
            transient=True,
        )

    def started(self, history: RunHistory) -> None:
        self._history = history
        info = history.info
        title = Text.assemble(
            ("retrograd ", "bold cyan"),
            (text.neutralise(info.name), "bold"),
            (f"  {info.algorithm.upper()}, {text.counted(info.updates, 'update')}", "dim"),
        )
        self._console.print()
        self._console.print(Padding(title, (0, 1)))
        facts = [
            (text.neutralise(key), text.neutralise(value)) for key, value in info.facts.items()
        ]
        self._console.print(_pairs(facts))
        self._console.print()
        shown = fit(info, self._console.width).fields
        self._console.print(_pairs(legend(info, shown), "dim italic"))
        self._console.print()
        self._live.start()

    def updated(self, row: UpdateRow) -> None:
        width = self._console.width
        if self._history is None:
            return
        if self._columns is None or self._fitted_to != width or self._rows_until_header <= 0:
            self._fitted_to, self._columns = width, fit(self._history.info, width)
            self._rows_until_header = _ROWS_PER_HEADER
            self._line(self._columns.header())
        self._line(self._columns.row(row))
        self._rows_until_header -= 1

    def evaluated(self, row: EvaluationRow) -> None:
        self._line(Text(f" {evaluation_line(row)}", "cyan"))

    def sampled(self, samples: Sequence[Sample]) -> None:
        lines: list[tuple[str, str, str]] = []
        for before, sample in zip([None, *samples], samples, strict=False):
            if before is None or before.prompt != sample.prompt:
                lines.append(("prompt", "", sample.prompt))
            reward = text.score(sample.answer.reward)
            lines.append((sample.label, reward, answer_text(sample.answer)))
        corners = "╭" + "│" * (len(lines) - 2) + "╰"
        for corner, line in zip(corners, lines, strict=False):
            self._line(_sample_line(corner, *line, self._console.width - 26))

    def happened(self, event: Event) -> None:
        message = text.neutralise(event.message, keep_newlines=True)
        label = "" if event.level == "info" else f"{event.level}: "
        line = Text.assemble((label, _LEVEL_STYLES[event.level]), message)
        self._console.print(Padding(line, (0, 1)))

    def finished(self, summary: Summary) -> None:
        self.close()
        self._console.print()
        self._console.print(Padding(Text(summary.headline, "bold"), (0, 1)))
        longest = max((len(label) for label, _ in summary.rows), default=0)
        for label, value in summary.rows:
            head = f"   {label:<{longest}}  "
            if label in PROSE:
                folds = text.folded(value, self._console.width - len(head))
                value = folds.replace("\n", "\n" + " " * len(head))
            # Otherwise whole: a command that was broken over two lines could not be copied.
            self._console.print(Text.assemble((head, "dim"), value), soft_wrap=True)
        if summary.health:
            self._console.print()
            self._console.print(Padding(Text("Health", "bold"), (0, 1)))
            self._console.print(_pairs([("•", finding) for finding in summary.health]))

    def close(self) -> None:
        self._live.stop()

    def _line(self, line: Text) -> None:
        self._console.print(line, no_wrap=True, overflow="ellipsis", crop=True)

    def _bars(self) -> RenderableType:
        history = self._history
        if history is None:
            return Text(" preparing", "dim")
        grid = Table.grid(padding=(0, 1), expand=True)
        grid.add_column(width=13, no_wrap=True)
        grid.add_column(ratio=1)
        grid.add_column(width=26, no_wrap=True)
        done, total = history.stage_done, history.stage_total
        merging = history.stage == "merge"
        stage_bar = ProgressBar(
            total=max(1, total), completed=done, complete_style="cyan", pulse=merging
        )
        sft = history.info.algorithm == "sft"
        unit = _UNITS.get(history.stage, "texts" if sft else "answers")
        if history.stage == "score" and history.info.algorithm == "grpo":
            unit = "groups"
        count = f"{done}/{total} {unit}" if total else ""
        grid.add_row(f" {_VERBS[history.stage]}", stage_bar, Text(count, "dim"))
        # What merging takes, the pace of the updates does not tell.
        if not merging and (history.stage != "prepare" or history.finished_updates):
            run_bar = ProgressBar(total=1.0, completed=history.fraction_done())
            now = min(history.finished_updates + 1, history.info.updates)
            label = f" {now}/{history.info.updates}"
            grid.add_row(label, run_bar, Text(_time_left(history), "dim"))
        return Group(grid, *_trace(history, self._console.width - 40))


def _time_left(history: RunHistory) -> str:
    left = history.seconds_left()
    if left is None:
        return f"{text.duration(history.elapsed)} so far"
    return f"about {text.duration(left)} left"


def _trace(history: RunHistory, cells: int) -> list[Text]:
    """The rewards or losses so far as a row of little bars, each the mean of as many updates as it
    takes."""
    figures = history.figures
    if len(figures) < 2 or cells < 8:
        return []
    per_cell = -(-len(figures) // cells)
    chunks = [figures[i : i + per_cell] for i in range(0, len(figures), per_cell)]
    means = [sum(chunk) / len(chunk) for chunk in chunks]
    low, high = min(means), max(means)
    step = (high - low) / (len(_SPARKS) - 1) or 1.0
    sparks = "".join(_SPARKS[round((mean - low) / step)] for mean in means)
    ends = f"  {text.score(figures[0])} → {text.score(figures[-1])}"
    return [Text.assemble(f" {history.followed_name:<14}", (sparks, "green"), (ends, "dim"))]


def _sample_line(corner: str, label: str, reward: str, content: str, cells: int) -> Text:
    shown = text.one_line(content, max(8, cells))
    return Text.assemble(
        (f"   {corner} ", "dim"),
        (f"{label:<9} {reward:>6}  ", "dim"),
        (shown, "italic" if label == "prompt" else ""),
    )


def _pairs(rows: Sequence[tuple[str, str]], style: str = "") -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in rows:
        grid.add_row(f"   {label}", Text(value, style))
    return grid
