"""A run as files for other programs, piece by piece, so that no export holds up a writer or fills
the memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.store.database import Store
from app.store.lines import Record, csv_line, json_line
from app.store.models import Answer, Group, Metric, MetricName, Prompt, Run, Update
from app.store.queries.metrics import metric_rows
from app.store.visible import visible_in
from trainer.monitor.records import VERSION

_UPDATES_AT_ONCE = 200
_GROUPS_AT_ONCE = 50
_NUMBERS = ("metric", "update", "optimizer_step", "tokens", "time", "value")


def metrics_csv(store: Store, run_id: int) -> Iterator[str]:
    """A row for each update and evaluation, a column for each metric; empty where there is no
    value, or none that is finite."""
    with store.read() as session:
        names = _names(session, run_id)
    yield csv_line(["kind", "update", "time", "steps", "tokens", *names])
    for update, values in each_update(store, run_id):
        numbers = ["" if values.get(name) is None else repr(values[name]) for name in names]
        when = time_of(update.at)
        yield csv_line([update.kind, update.update, when, update.steps, update.tokens, *numbers])


def metrics_jsonl(store: Store, run_id: int) -> Iterator[str]:
    """The records of updates and evaluations in the shape of ``observe.jsonl``. How long an
    evaluation took is not kept: its ``timing/*`` would stand beside those of the update."""
    for update, values in each_update(store, run_id):
        yield json_line(_update_record(update, values))


def numbers_csv(store: Store, run_id: int, names: Sequence[str]) -> Iterator[str]:
    """A row for each number of the metrics ``names``."""
    yield csv_line(_NUMBERS)
    for rows in metric_rows(store, run_id, names):
        yield "".join(csv_line((r.name, r.update, r.steps, r.tokens, r.at, r.value)) for r in rows)


def records_jsonl(store: Store, run_id: int) -> Iterator[str]:
    """The whole run in the shape of ``observe.jsonl``: the run, its prompts, answers and updates.
    Rows that were superseded are left out, so it reads as if the run had never stopped."""
    with store.read() as session:
        run = session.get(Run, run_id)
    if run is None:
        return
    body = {
        "algorithm": run.algorithm,
        "model": run.model,
        "params": run.params,
        "resumed_from_update": None,
        "run_id": run.uuid,
    }
    yield json_line(_record("run", run.started_at or run.created_at, body))
    known: set[int] = set()
    for update, values in each_update(store, run_id):
        yield from _answers(store, run_id, update, known)
        yield json_line(_update_record(update, values))


def _names(session: Session, run_id: int) -> list[str]:
    own = select(Metric.name_id).where(visible_in(session, run_id, Metric)).distinct()
    return list(
        session.scalars(
            select(MetricName.name).where(MetricName.id.in_(own)).order_by(MetricName.name)
        )
    )


def each_update(store: Store, run_id: int) -> Iterator[tuple[Update, dict[str, float | None]]]:
    """The updates and evaluations that count, with their metrics, in the order in which they ended:
    an evaluation comes after its update."""
    last = 0
    while True:
        with store.read() as session:
            some = session.scalars(
                select(Update)
                .where(visible_in(session, run_id, Update), Update.id > last)
                .order_by(Update.id)
                .limit(_UPDATES_AT_ONCE)
            ).all()
            if not some:
                return
            values = _values(session, run_id, some)
        for update in some:
            mine = values.get((update.segment_id, update.update), {})
            of_evaluation = update.kind == "evaluation"
            yield update, {n: v for n, v in mine.items() if n.startswith("eval/") == of_evaluation}
        last = some[-1].id


def _values(
    session: Session, run_id: int, updates: Sequence[Update]
) -> dict[tuple[int, int], dict[str, float | None]]:
    numbers = [update.update for update in updates]
    found = session.execute(
        select(Metric.segment_id, Metric.update, MetricName.name, Metric.value)
        .join(MetricName, MetricName.id == Metric.name_id)
        .where(
            visible_in(session, run_id, Metric),
            Metric.update.between(min(numbers), max(numbers)),
        )
    )
    values: dict[tuple[int, int], dict[str, float | None]] = {}
    for segment, number, name, value in found:
        values.setdefault((segment, number), {})[name] = value
    return values


def _answers(store: Store, run_id: int, update: Update, known: set[int]) -> Iterator[str]:
    last = -1
    while True:
        with store.read() as session:
            groups = session.scalars(
                select(Group)
                .where(
                    Group.run_id == run_id,
                    Group.segment_id == update.segment_id,
                    Group.kind == update.kind,
                    Group.update == update.update,
                    Group.number > last,
                )
                .order_by(Group.number)
                .limit(_GROUPS_AT_ONCE)
            ).all()
            numbers = [group.id for group in groups]
            answers = session.scalars(
                select(Answer).where(Answer.group_id.in_(numbers)).order_by(Answer.id)
            ).all()
            wanted = {group.prompt_id for group in groups}
            prompts = {
                prompt.id: prompt
                for prompt in session.scalars(select(Prompt).where(Prompt.id.in_(wanted)))
            }
        for number in sorted(wanted - known):
            known.add(number)
            body = {"key": prompts[number].key, "messages": prompts[number].messages}
            yield json_line(_record("prompt", update.at, body))
        of = {group.id: group for group in groups}
        for answer in answers:
            group = of[answer.group_id]
            yield json_line(_rollout_record(update.at, group, prompts[group.prompt_id].key, answer))
        if len(groups) < _GROUPS_AT_ONCE:
            return
        last = groups[-1].number


def _rollout_record(at: float, group: Group, prompt: str, answer: Answer) -> Record:
    body: Record = {
        "update": answer.update,
        "group": group.number,
        "member": answer.member,
        "prompt": prompt,
        "completion": answer.text,
        "tokens": answer.tokens,
        "truncated": answer.truncated,
        "reward": answer.reward,
        "reward_raw": answer.reward_raw,
        "judge_term": answer.judge_term,
        "parts": answer.parts,
        "advantage": answer.advantage,
        "trained": answer.trained,
        "skip_reason": answer.skip_reason,
        "audit": answer.audit,
        "judge_words": answer.judge_words,
    }
    if answer.text is not None and len(answer.text) < answer.chars:
        body["completion_chars"] = answer.chars
    return _record("rollout", at, body)


def _update_record(update: Update, values: dict[str, float | None]) -> Record:
    body: Record = {"update": update.update}
    if update.kind == "train":
        body["status"] = update.status
    body["metrics"] = values
    if strange := [name for name, value in values.items() if value is None]:
        body["nonfinite"] = strange
    return _record("update" if update.kind == "train" else "evaluation", update.at, body)


def _record(kind: str, at: float, body: Record) -> Record:
    return {"v": VERSION, "time": time_of(at), "type": kind} | body


def time_of(at: float) -> str:
    """Unix seconds as records have them: UTC, ISO 8601."""
    return datetime.fromtimestamp(at, UTC).isoformat()
