"""The runs of the store as a person reads them in a terminal."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.rows import print_rows
from app.store.left_files import STATES, look
from app.store.queries.runs import last_figure
from app.store.status import OPEN, seconds_taken
from app.text import counted, duration, neutralise, one_line, score, size
from trainer.health.headline import headline_of

if TYPE_CHECKING:
    from app.store.models import Run
    from app.store.queries.artifacts import Recorded
    from app.store.queries.metrics import LastValue
    from app.store.queries.runs import RunRow
    from trainer.health.rules import Band

_BARS = "▁▂▃▄▅▆▇█"
_GAP = "  "
_LINE_CELLS = 12
_MODEL_CELLS = 28
_NAME_CELLS = 16
STYLES = {
    "running": "green",
    "starting": "green",
    "stopping": "yellow",
    "stopped": "yellow",
    "failed": "red",
    "interrupted": "red",
}


def bars(points: Sequence[float | None], cells: int) -> str:
    """A line of bars, each the mean of its part of ``points``; a blank where there is none."""
    known = [point for point in points if point is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    cells = min(cells, len(points))
    drawn = ""
    for cell in range(cells):
        start, end = cell * len(points) // cells, (cell + 1) * len(points) // cells
        part = [point for point in points[start:end] if point is not None]
        if not part:
            drawn += " "
            continue
        height = (sum(part) / len(part) - low) / (high - low) if high > low else 0.5
        drawn += _BARS[round(height * (len(_BARS) - 1))]
    return drawn


def print_list(runs: Sequence[RunRow], console: Console, now: float | None = None) -> None:
    """One line a run, no wider than the terminal: the name takes what room is left, and the model
    and the line of rewards or losses stay away where there is too little."""
    now = time.time() if now is None else now
    words = dict.fromkeys(headline_of(run.algorithm).word for run in runs)
    titles = {"algorithm": "", "line": "/".join(words)}
    left_out = set() if console.encoding.lower().startswith("utf") else {"line"}
    for column in ("model", "line", "algorithm", "time"):
        rows = [_cells(run, now, left_out) for run in runs]
        others = [name for name in rows[0] if name != "name"]
        widths = {
            n: max(cell_len(titles.get(n, n)), *(row[n].cell_len for row in rows)) for n in others
        }
        room = console.width - sum(widths.values()) - len(_GAP) * len(others)
        if room >= _NAME_CELLS:
            break
        left_out.add(column)
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, len(_GAP), 0, 0))
    for name in rows[0]:
        numbers = name in ("id", "update", "last", "time")
        most = max(_NAME_CELLS, room) if name == "name" else None
        table.add_column(
            titles.get(name, name),
            justify="right" if numbers else "left",
            no_wrap=True,
            overflow="ellipsis",
            min_width=widths.get(name),
            max_width=most,
        )
    for row in rows:
        table.add_row(*row.values())
    console.print(table)


def brief(seconds: float) -> str:
    """``42s``, ``3m 05s``, ``2h 10m``, ``3d 04h``."""
    total = round(seconds)
    if total < 60:
        return f"{total}s"
    if total < 3600:
        return f"{total // 60}m {total % 60:02d}s"
    if total < 86400:
        return f"{total // 3600}h {total % 3600 // 60:02d}m"
    return f"{total // 86400}d {total % 86400 // 3600:02d}h"


def _cells(run: RunRow, now: float, left_out: Container[str]) -> dict[str, Text]:
    taken = run.seconds_taken(now)
    cells = {
        "id": Text(str(run.id)),
        "name": Text(neutralise(run.name), "bold"),
        "algorithm": Text(run.algorithm, "dim"),
        "model": Text(one_line(run.model, _MODEL_CELLS), "dim"),
        "status": Text(run.status, STYLES.get(run.status, "")),
        "update": Text(f"{run.completed}/{run.planned}" if run.planned else ""),
        "line": Text(bars(run.sparkline, _LINE_CELLS), "cyan"),
        "last": Text("" if run.last is None else score(run.last)),
        "time": Text("" if taken is None else brief(taken)),
    }
    return {name: cell for name, cell in cells.items() if name not in left_out}


def print_run(
    run: Run,
    values: Sequence[LastValue],
    artifacts: Sequence[Recorded],
    console: Console,
    now: float | None = None,
) -> None:
    """Status, facts, the last numbers beside their healthy bands, and what is wrong with them."""
    title = Text(f"{run.id}  ", "dim").append(neutralise(run.name), "bold")
    console.print(title.append(f"  {run.status}", STYLES.get(run.status, "")))
    print_rows([(Text(k, "dim"), Text(v)) for k, v in _facts(run, now or time.time())])
    if values:
        console.print()
        console.print(_numbers(run, values))
    for finding in run.findings:
        console.print()
        console.print(Text(neutralise(_sentence(finding)), "yellow"))
    if run.audited:
        words = ", ".join(map(str, run.audited))
        console.print()
        console.print(Text(f"The reward may be gamed; over their limit: {words}.", "yellow"))
    if artifacts:
        console.print()
        print_rows([(Text(a.kind, "dim"), _left(a, run)) for a in artifacts])


def _left(recorded: Recorded, run: Run) -> Text:
    """A file that the run has recorded, and what has become of it."""
    inside = Path(run.folder) if run.source == "browser" else None
    shown = Text(f"{neutralise(recorded.path)} ({size(recorded.size)})")
    state = look(recorded, inside, at_work=run.status in OPEN)
    return shown.append(f": {STATES[state]}", "yellow") if STATES[state] else shown


def _facts(run: Run, now: float) -> Iterator[tuple[str, str]]:
    yield "algorithm", f"{run.algorithm} on {neutralise(run.model)}"
    if run.planned:
        left = (run.planned - run.completed) * (run.seconds_per_update or math.nan)
        active = run.status in ("running", "stopping") and math.isfinite(left)
        yield (
            "update",
            f"{run.completed} of {run.planned}"
            + (f", {run.stage} {run.stage_done}/{run.stage_total}" if run.stage else "")
            + (f", about {duration(left)} left" if active else ""),
        )
    if run.started_at is not None:
        began = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.started_at))
        taken = duration(seconds_taken(run, now) or 0.0)
        yield "started", f"{began}, {taken}" + (" so far" if run.status in OPEN else " in all")
    main = headline_of(run.algorithm)
    last = last_figure(run.algorithm, run.last_reward, run.sparkline)
    if last is not None:
        yield main.word, f"{bars(run.sparkline, 40)}  {score(last)}"
    if run.last_evaluation is not None:
        yield f"held-out {main.word}", score(run.last_evaluation)
    if run.message:
        yield "outcome", neutralise(run.message, keep_newlines=True)
    if run.lost:
        yield "lost", f"{counted(run.lost, 'row')} could not be stored"
    for name, value in run.facts.items():
        yield neutralise(name), neutralise(str(value))
    yield "config", neutralise(run.config_path)


def _numbers(run: Run, values: Sequence[LastValue]) -> Table:
    from trainer.health.resolve import guide_for

    last = {value.name: value for value in values}
    bad = {str(finding["metric"]) for finding in run.findings}
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("metric", no_wrap=True)
    table.add_column("last", justify="right", no_wrap=True)
    table.add_column("healthy")
    for metric in guide_for(run.algorithm, run.params):
        if metric.name in last:
            found = last[metric.name].value
            style = "yellow" if metric.name in bad else ""
            table.add_row(
                Text(metric.name, style),
                Text("not finite" if found is None else f"{found:.3g}", style or "bold"),
                Text(_with_limit(metric.healthy, run), "dim"),
            )
    return table


def _with_limit(band: Band, run: Run) -> str:
    """What is healthy in words, with the number in place of the key that holds it."""
    from trainer.health.resolve import lookup

    def limit(found: re.Match[str]) -> str:
        value = lookup(run.params, found[1])
        return found[1] if value is None else f"{value:g}"

    return re.sub(r"`([\w.]+)`", limit, band.text)


def _sentence(finding: Mapping[str, Any]) -> str:
    return (
        f"{finding['metric']} is {finding['value']:.3g}, {finding['bound']}, since update "
        f"{finding['since']}. {finding['what']} {finding['change']}"
    )
