"""The journal of a run as a file for other programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from app.store.database import Store
from app.store.export import time_of
from app.store.lines import Record, csv_line, json_line
from app.store.queries.journal import entries

_COLUMNS = ("time", "level", "code", "update", "message", "data", "id")
_AT_ONCE = 500


def events_csv(store: Store, run_id: int) -> Iterator[str]:
    """A row for each line of the journal, the oldest first; ``data`` is JSON."""
    yield csv_line(_COLUMNS)
    for record in _records(store, run_id):
        yield csv_line([record[name] for name in _COLUMNS])


def events_jsonl(store: Store, run_id: int) -> Iterator[str]:
    """The same as records, one a line."""
    for record in _records(store, run_id):
        yield json_line(record)


def _records(store: Store, run_id: int) -> Iterator[Record]:
    last = 0
    while True:
        with store.read() as session:
            found = entries(session, run_id, after=last, limit=_AT_ONCE)
        for entry in found.rows:
            told = asdict(entry)
            record: Record = {"time": time_of(told.pop("at"))} | told
            yield record
            last = entry.id
        if not found.newer:
            return
