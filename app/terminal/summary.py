"""The last word on a run: did the reward or the loss move, where is the adapter, how is it used."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from app.terminal.history import EvaluationRow, RunHistory
from app.text import counted, duration, neutralise, score, signed, size
from trainer.monitor import Outcome, RunInfo

SummaryRow = tuple[str, str]
PROSE = ("reward", "loss", "held-out", "held-out loss", "result")
"""The labels of rows that hold sentences, which a terminal may break at words."""


@dataclass(frozen=True, slots=True)
class Summary:
    """``rows`` are labelled values, none of which may be broken over two lines; ``health`` holds
    what the run's metrics leave to be said, a paragraph each."""

    headline: str
    rows: Sequence[SummaryRow]
    health: Sequence[str]


@dataclass(frozen=True, slots=True)
class Leads:
    """Where else a run can be read, and the command that goes on with it where it did not end:
    ``observe_file`` holds its records, ``board`` is its folder for TensorBoard."""

    observe_file: Path | None = None
    board: Path | None = None
    again: str = ""


def summarise(history: RunHistory, outcome: Outcome, leads: Leads) -> Summary:
    return Summary(
        headline(history, outcome),
        summary_rows(history, outcome, leads),
        [neutralise(finding.message) for finding in outcome.findings],
    )


def headline(history: RunHistory, outcome: Outcome) -> str:
    verb = {"completed": "Finished", "stopped": "Stopped after", "failed": "Failed after"}
    planned = counted(history.info.updates, "update")
    if history.info.resumed_from_update == history.info.updates:
        algorithm = history.info.algorithm
        key = "training.epochs" if algorithm == "sft" else f"{algorithm}.updates"
        return f"All {planned} were made before. To train on, raise {key} and resume again."
    return f"{verb[outcome.status]} {outcome.updates} of {planned} in {duration(history.elapsed)}."


def summary_rows(history: RunHistory, outcome: Outcome, leads: Leads) -> list[SummaryRow]:
    rows = [_followed(history)] if history.figures else []
    if history.evaluations:
        rows.append(_held_out(history.evaluations))
    if outcome.output is None and outcome.adapter is None:
        # Why a run failed is the command's to say, where it ends with an error.
        why = f": {neutralise(outcome.message)}" if outcome.status != "failed" else ""
        rows.append(("result", f"none was written{why}"))
    else:
        rows += _results(history.info, outcome)
    if leads.observe_file is not None:
        rows.append(("records", shown_path(leads.observe_file)))
    if leads.board is not None:
        where = shlex.quote(shown_path(leads.board))
        rows.append(("tensorboard", f"tensorboard --logdir {where}{_if_not_installed()}"))
    if history.checkpoint is not None and outcome.status != "completed":
        rows.append(("checkpoint", shown_path(Path(history.checkpoint))))
        if leads.again:
            rows.append(("go on", neutralise(leads.again)))
    return rows


def shown_path(path: Path) -> str:
    """The path as one would type it from here, where that is shorter."""
    absolute = os.path.abspath(path)  # noqa: PTH100 - resolve() would follow the user's links
    return neutralise(min(os.path.relpath(absolute), absolute, key=len))


def _if_not_installed() -> str:
    there = find_spec("tensorboard") is not None
    return "" if there else " (first: pip install tensorboard)"


def _followed(history: RunHistory) -> SummaryRow:
    ends = history.first_and_last()
    if ends is None:
        return history.followed_name, score(history.figures[-1])
    first, last, count = ends
    each = (
        f"mean of the first {count} updates → of the last {count}" if count > 1 else "first → last"
    )
    return history.followed_name, f"{score(first)} → {score(last)} ({signed(last - first)}), {each}"


def _held_out(evaluations: Sequence[EvaluationRow]) -> SummaryRow:
    """The best is the first one that no other exceeds."""
    first, last = evaluations[0].figure, evaluations[-1].figure
    title = "held-out" if evaluations[0].of == "reward" else "held-out loss"
    if len(evaluations) == 1:
        return title, score(last)
    choose = min if evaluations[0].of == "loss" else max
    best = choose(evaluations, key=lambda row: row.figure)
    where = f"after update {best.update}" if best.update else "before the first update"
    change = f"{score(first)} → {score(last)} ({signed(last - first)}), first → last"
    return title, f"{change}; best {score(best.figure)} {where}"


def _results(info: RunInfo, outcome: Outcome) -> list[SummaryRow]:
    """The adapter and its use; or the merged model and its use, with the adapter beside it."""
    wants_model = _kind(info.params) == "model"
    kept = outcome.adapter if wants_model else outcome.output
    adapter = [("adapter", _weighed(Path(kept)))] if kept is not None else []
    if wants_model and outcome.output is not None:
        model = Path(outcome.output)
        use = f"llama-cli -m {shlex.quote(shown_path(model))}"
        return [("model", _weighed(model)), *adapter, ("use it", use)]
    assert kept is not None
    missing = [("model", "none was written; the adapter is whole")] if wants_model else []
    base = shlex.quote(shown_path(Path(info.model)))
    use = f"llama-cli -m {base} --lora {shlex.quote(shown_path(Path(kept)))}"
    return [*missing, *adapter, ("use it", use)]


def _weighed(path: Path) -> str:
    return shown_path(path) + (f" ({size(path.stat().st_size)})" if path.is_file() else "")


def _kind(params: Mapping[str, object]) -> object:
    output = params.get("output")
    return output.get("kind", "adapter") if isinstance(output, Mapping) else "adapter"
