"""How fast the dashboard is over a store that is full, and what keeping a run costs the run.

    python benchmarks/dashboard.py [--model MODEL.gguf] [--store FILE] [--quick]

Fills a store with 1,000 runs, one of them of a million metric points and a hundred thousand
answers, serves it by `retrograd serve`, and measures: every page and what its scripts fetch, over
HTTP; the search; how many rows a second the store takes while three pages are open; how soon a page
hears of a new row; and the share of a run's time that keeping it takes, on the bundled tiny model
and on MODEL. Prints a row for each, with its target. The exit status is 1 where one is missed.

--store keeps the filled store in FILE, and takes it from there the next time. --quick is a small
store and few repetitions, to see that everything works: its figures say nothing, and nothing is
missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import filled_store
import httpx
import live_load
import numpy as np
import psutil
import workload
from filled_store import COMMON_WORD, RARE_WORD, Filled, Size
from sqlalchemy import func, select

from app.store.database import Store
from app.store.models import Answer, Group, Run

HERE = Path(__file__).resolve().parent
RETROGRAD = Path(sys.executable).with_name("retrograd")
PAGE_MILLISECONDS = 100.0
SEARCH_MILLISECONDS = 200.0
ROWS_PER_SECOND = 5000.0
HINT_SECONDS = 1.0
COST_SHARE = 0.01
QUICK = Size(runs=20, points=5000, answers=400)

CONFIG = """
[run]
algorithm = "grpo"
[model]
path = {model}
[output]
path = {output}
[lora]
rank = 8
alpha = 16.0
[training]
ctx = 256
lr = 1e-5
[grpo]
prompts = {prompts}
reward_command = {command}
updates = {updates}
prompts_per_update = 4
group_size = 8
grpo_epochs = 1
clip_range_low = 0.2
clip_range_high = 0.28
kl_coefficient = 0.0
[grpo.sampling]
temperature = 1.0
top_p = 1.0
max_new_tokens = 64
seed = 1
"""


@dataclass(frozen=True, slots=True)
class Row:
    """``limit`` is the most that ``value`` may be, or with ``at_least`` the least; none where the
    row only informs."""

    what: str
    value: float
    limit: float | None
    unit: str
    note: str = ""
    at_least: bool = False

    @property
    def met(self) -> bool:
        if self.limit is None:
            return True
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def __str__(self) -> str:
        bound = "" if self.limit is None else f"{'≥' if self.at_least else '≤'} {self.limit:,g}"
        verdict = "" if self.limit is None else "met" if self.met else "MISSED"
        measured = f"{self.what:<52} {self.value:>10,.2f} {self.unit:<8}"
        return f"{measured} {bound:>9} {verdict:<6}  {self.note}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a real model, to measure what a run is charged")
    parser.add_argument("--store", type=Path, help="keep the filled store here")
    parser.add_argument("--requests", type=int, default=40, help="of each address")
    parser.add_argument("--quick", action="store_true", help="small, to see that it works")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        place = args.store or Path(name) / "filled.db"
        filled = filled_once(place, QUICK if args.quick else Size())
        rows: list[Row] = []
        with closing(Store.open(str(place))) as store, served(place, Path(name)) as url:
            rows += told(measured(store, url, filled, args), args.quick)
        rows += told(costs(Path(name), args), args.quick)
    missed = [row.what for row in rows if not row.met]
    print(f"{platform.machine()}, {os.cpu_count()} cores; missed: {', '.join(missed) or 'nothing'}")
    return 1 if missed else 0


def told(rows: Iterator[Row], quick: bool) -> list[Row]:
    """``rows``, each printed as it comes; quick ones are held against nothing."""
    kept = []
    for row in rows:
        kept.append(replace(row, limit=None) if quick else row)
        print(kept[-1], flush=True)
    return kept


def filled_once(place: Path, size: Size) -> Filled:
    """The store at ``place``, filled where it is not there yet."""
    there = place.exists()
    with closing(Store.open(str(place))) as store:
        if not there:
            start = time.perf_counter()
            filled = filled_store.fill(store, size)
            print(f"filled {place.name} in {time.perf_counter() - start:.0f} s, ", end="")
            print(f"{place.stat().st_size / 2**20:,.0f} MiB", flush=True)
            return filled
        with store.read() as session:
            long_run = session.scalar(select(Run.id).order_by(Run.completed.desc()).limit(1))
            assert long_run is not None, f"{place} has no runs"
            updates = session.get_one(Run, long_run).completed
            prompts = session.scalar(select(func.count(func.distinct(Group.prompt_id)))) or 0
        return Filled(long_run, long_run - 1, updates, prompts)


@contextmanager
def served(place: Path, folder: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    command = [RETROGRAD, "serve", "--port", str(port), "--store", str(place)]
    url = f"http://127.0.0.1:{port}"
    environment = {**os.environ, "RETROGRAD_DATA_FOLDER": str(folder / "data")}
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--workspace", folder], stdout=log, stderr=log, env=environment
        )
    try:
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline and not _answers(url):
            time.sleep(0.05)
        if not _answers(url):
            sys.exit(f"the server did not start:\n{(folder / 'server.log').read_text()}")
        yield url
        used = psutil.Process(process.pid).memory_info().rss / 2**20
        print(f"the server's memory after all that: {used:,.0f} MiB")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=30).status_code == 200
    except httpx.TransportError:
        return False


def measured(store: Store, url: str, filled: Filled, args: argparse.Namespace) -> Iterator[Row]:
    count = 3 if args.quick else max(30, args.requests)
    with httpx.Client(base_url=url, timeout=60) as client:
        for path in pages(store, filled):
            yield _timed(client, path, count, PAGE_MILLISECONDS)
        for words in (RARE_WORD, COMMON_WORD, f"{COMMON_WORD} {RARE_WORD}", "ba*"):
            path = f"/runs/{filled.long_run}/trajectories?q={words.replace(' ', '+')}"
            yield _timed(client, path, count, SEARCH_MILLISECONDS)
    rate = live_load.ingest(store, url, 20 if args.quick else 1000)
    note = f"{rate.requests} requests of 3 pages meanwhile, p95 {1000 * rate.waiting:.0f} ms"
    if rate.lost:
        note += f"; {rate.lost} rows lost"
    taken = (rate.rows - rate.lost) / rate.seconds
    yield Row("rows taken by the store", taken, ROWS_PER_SECOND, "rows/s", note, at_least=True)
    waits = live_load.hint_seconds(store, url, 3 if args.quick else 40)
    note = f"median {np.median(waits):.2f} s"
    what = "an update told to its hint in the page, p95"
    yield Row(what, float(np.quantile(waits, 0.95)), HINT_SECONDS, "s", note)


def pages(store: Store, filled: Filled) -> Iterator[str]:
    """What a person opens, and what the scripts of those pages fetch."""
    run, other = filled.long_run, filled.other_run
    middle = filled.updates - 500 if filled.updates > 1000 else filled.updates - 2
    with store.read() as session:
        group = select(Answer.group_id).where(Answer.run_id == run).limit(1)
        answers = session.scalars(
            select(Answer.id).where(Answer.group_id == group.scalar_subquery())
        )
        first, second, *_ = answers.all()
    charts = "&".join(f"name={name}" for name in filled_store.NAMES[:8])
    yield from ("/", "/runs.json", "/?q=addition", "/?status=failed", "/runs/new")
    yield f"/runs/{run}"
    yield f"/runs/{run}/metrics"
    yield f"/runs/{run}/metrics/data?name=reward/mean"
    yield f"/runs/{run}/metrics/data?{charts}"
    yield f"/runs/{run}/metrics/data?name=reward/mean&from={middle}&to={middle + 400}"
    yield f"/runs/{run}/metrics/table?name=reward/mean"
    yield f"/runs/{run}/metrics/markers"
    yield f"/runs/{run}/trajectories"
    yield f"/runs/{run}/trajectories?update={middle}"
    yield f"/runs/{run}/trajectories?update={middle}&compare={first}&with={second}"
    yield f"/runs/{run}/trajectories?min=0.9"
    yield f"/runs/{run}/trajectories?skip=truncated"
    yield f"/runs/{run}/config"
    yield f"/runs/{run}/journal"
    yield f"/runs/{run}/artifacts"
    yield f"/compare?run={run}&run={other}"


def _timed(client: httpx.Client, path: str, count: int, limit: float) -> Row:
    answer = client.get(path)
    if answer.status_code != 200:
        return Row(path, float("inf"), limit, "ms", f"answered {answer.status_code}")
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        client.get(path).raise_for_status()
        seconds.append(time.perf_counter() - start)
    middle, high = 1000 * np.quantile(seconds, [0.5, 0.95])
    note = f"median {middle:.1f} ms, {len(answer.content) / 1024:,.0f} KiB"
    return Row(_short(path), float(high), limit, "ms p95", note)


def _short(path: str) -> str:
    return path if len(path) <= 52 else f"{path[:51]}…"


def costs(folder: Path, args: argparse.Namespace) -> Iterator[Row]:
    """The seconds of the trainer's thread and the processor seconds of the store's own threads, of
    those that the updates take; and the same run without a store, alternately."""
    tiny = HERE.parent / "examples" / "tiny" / "tiny.gguf"
    if args.quick:
        yield _cost(folder / "tiny", tiny, "tiny model", updates=2, repeats=1, limit=None)
        return
    yield _cost(folder / "tiny", tiny, "tiny model", updates=60, repeats=3, limit=None)
    if args.model is not None:
        name = args.model.name.partition(".")[0]
        yield _cost(folder / "model", args.model, name, updates=3, repeats=2, limit=COST_SHARE)


def _cost(
    folder: Path, model: Path, name: str, *, updates: int, repeats: int, limit: float | None
) -> Row:
    folder.mkdir()
    config = _config(folder, model, updates)
    kept, alone = [], []
    for _ in range(repeats):
        kept.append(_run(config, str(folder)))
        alone.append(_run(config, "none"))
    each = {what: sum(run[what] for run in kept) / updates / repeats for what in kept[0]}
    without = {what: sum(run[what] for run in alone) / updates / repeats for what in alone[0]}
    note = (
        f"{1000 * each['on_thread']:.2f} ms of the trainer's thread and "
        f"{1000 * each['beside']:.2f} ms beside it, of {each['wall']:.2f} s an update "
        f"({without['wall']:.2f} s without a store; processor seconds {each['processor']:.2f} and "
        f"{without['processor']:.2f})"
    )
    share = (each["on_thread"] + each["beside"]) / each["wall"]
    what = f"keeping a run of {name}, of its updates"
    return Row(what, 100 * share, None if limit is None else 100 * limit, "%", note)


def _config(folder: Path, model: Path, updates: int) -> Path:
    lines = [json.dumps({"messages": m}) for m in workload.conversations(0)]
    (folder / "prompts.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder / "reward.py").write_text(workload.REWARD_PROGRAM, encoding="utf-8")
    config = folder / "grpo.toml"
    config.write_text(
        CONFIG.format(
            model=json.dumps(str(model.resolve())),
            output=json.dumps("adapter.gguf"),
            prompts=json.dumps("prompts.jsonl"),
            command=json.dumps(["python3", "reward.py"]),
            updates=updates,
        ),
        encoding="utf-8",
    )
    return config


def _run(config: Path, place: str) -> dict[str, float]:
    command = [sys.executable, str(HERE / "monitoring_cost.py"), str(config), place]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


if __name__ == "__main__":
    sys.exit(main())
