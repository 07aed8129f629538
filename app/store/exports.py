"""What a run can be had as: the files, by what is in them and in which form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from app.store.database import Store
from app.store.export import metrics_csv, metrics_jsonl, records_jsonl
from app.store.export_answers import answers_csv, answers_jsonl
from app.store.export_events import events_csv, events_jsonl
from app.store.queries.answers import Filters

What = Literal["metrics", "answers", "events", "records"]
Form = Literal["csv", "jsonl"]
MEDIA: dict[Form, str] = {"csv": "text/csv; charset=utf-8", "jsonl": "application/x-ndjson"}


@dataclass(frozen=True, slots=True)
class Export:
    """``lines`` writes the file piece by piece, while it is read."""

    what: What
    form: Form
    lines: Callable[[Store, int], Iterator[str]]
    about: str

    @property
    def name(self) -> str:
        return f"{self.what}.{self.form}"


def _every_answer_csv(store: Store, run_id: int) -> Iterator[str]:
    return answers_csv(store, run_id, None, Filters())


def _every_answer_jsonl(store: Store, run_id: int) -> Iterator[str]:
    return answers_jsonl(store, run_id, None, Filters())


_EXPORTS = (
    Export(
        "metrics",
        "csv",
        metrics_csv,
        "A row for each update and evaluation, a column for each metric.",
    ),
    Export("metrics", "jsonl", metrics_jsonl, "The same as records, one a line."),
    Export(
        "answers",
        "csv",
        _every_answer_csv,
        "A row for each answer, with its prompt, reward and advantage; those to held-out prompts "
        "too.",
    ),
    Export("answers", "jsonl", _every_answer_jsonl, "The same as records, one a line."),
    Export("events", "csv", events_csv, "The journal, a row for each line."),
    Export("events", "jsonl", events_jsonl, "The same as records, one a line."),
    Export(
        "records",
        "jsonl",
        records_jsonl,
        "The whole run in the shape of observe.jsonl: prompts, answers with reward and advantage, "
        "updates.",
    ),
)
EXPORTS = {export.name: export for export in _EXPORTS}
"""By the name of the file."""
