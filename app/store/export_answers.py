"""Some answers of a run as a file for other programs: those that a reader has chosen."""

from __future__ import annotations

from collections.abc import Iterator

from app.store.database import Store
from app.store.lines import Record, csv_line, json_line
from app.store.queries.answers import Filters, all_matching
from app.store.queries.trajectories import AnswerRow, Kind, PromptText, prompts_of

_COLUMNS = (
    "update", "kind", "group", "member", "prompt_key", "prompt", "completion", "tokens",
    "truncated", "reward", "reward_raw", "judge_term", "judge_words", "parts", "advantage",
    "trained", "skip_reason", "audit", "duplicate", "id",
)  # fmt: skip


def answers_csv(
    store: Store,
    run_id: int,
    kind: Kind | None,
    filters: Filters,
    update: int | None = None,
    group: int | None = None,
) -> Iterator[str]:
    """A row for each answer that passes ``filters``, in the order in which they were written: of
    one group, of one update, or (None) of all of the run; of one kind, or (None) of both."""
    yield csv_line(_COLUMNS)
    for record in _records(store, run_id, kind, filters, update, group):
        yield csv_line([record[name] for name in _COLUMNS])


def answers_jsonl(
    store: Store,
    run_id: int,
    kind: Kind | None,
    filters: Filters,
    update: int | None = None,
    group: int | None = None,
) -> Iterator[str]:
    """The same as records, one a line."""
    for record in _records(store, run_id, kind, filters, update, group):
        yield json_line(record)


def _records(
    store: Store,
    run_id: int,
    kind: Kind | None,
    filters: Filters,
    update: int | None,
    group: int | None,
) -> Iterator[Record]:
    for rows in all_matching(store, run_id, kind, filters, update):
        wanted = [row for row in rows if group is None or row.group == group]
        with store.read() as session:
            prompts = prompts_of(session, {row.prompt_id for row in wanted})
        for row in wanted:
            yield _record(row, prompts[row.prompt_id])


def _record(row: AnswerRow, prompt: PromptText) -> Record:
    """With the names of ``observe.jsonl`` for what is there too."""
    return {
        "update": row.update,
        "kind": row.kind,
        "group": row.group,
        "member": row.member,
        "prompt_key": prompt.key,
        "prompt": [{"role": role, "content": content} for role, content in prompt.messages],
        "completion": row.text,
        "tokens": row.tokens,
        "truncated": row.truncated,
        "reward": row.reward,
        "reward_raw": row.reward_raw,
        "judge_term": row.judge_term,
        "judge_words": row.judge_words,
        "parts": dict(row.parts),
        "advantage": row.advantage,
        "trained": row.trained,
        "skip_reason": row.skip_reason,
        "audit": list(row.audit),
        "duplicate": row.duplicate,
        "id": row.id,
    }
