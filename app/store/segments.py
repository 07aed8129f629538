"""The beginning of a stretch of a run, and what it goes on from."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import func, or_, select, update
from sqlalchemy.orm import Session

from app.store.alive import identity, own_start
from app.store.database import Store
from app.store.digest import Digest
from app.store.errors import StoreError
from app.store.models import Event, Metric, MetricName, Request, Run, Segment, Update
from app.store.provenance import provenance
from app.store.unfinished import Place
from app.store.values import plain, text
from app.store.visible import visible_in
from trainer.health.resolve import guide_for
from trainer.monitor import RunInfo

_BEFORE_ALL = -1
"""The bound of a segment that counts for nothing: an evaluation before update 1 has update 0."""


@dataclass(frozen=True, slots=True)
class Begun:
    """Where the rows of a segment belong, what the run has come to, how many of its rows were lost
    before, and where it comes from."""

    place: Place
    digest: Digest
    lost: int
    provenance: dict[str, str]


def begin(store: Store, run_id: int, info: RunInfo) -> Begun:
    """Start a segment: older ones are superseded from where it goes on.

    Raises StoreError where there is no such run, and DBAPIError.
    """
    now = time.time()
    origin = provenance(Path(_run(store, run_id).folder))
    # A long run takes seconds to read, in which nobody else could write.
    with store.read() as session:
        digest = _history(session, run_id, info)
    with store.write() as session:
        run = session.get_one(Run, run_id)
        bound = _BEFORE_ALL if info.resumed_from_update is None else info.resumed_from_update
        session.execute(
            update(Segment)
            .where(Segment.run_id == run_id)
            .where(or_(Segment.visible_until.is_(None), Segment.visible_until > bound))
            .values(visible_until=bound)
        )
        session.execute(
            update(Segment)
            .where(Segment.run_id == run_id, Segment.ended_at.is_(None))
            .values(ended_at=run.heartbeat_at or now, status="interrupted")
        )
        _forget_requests(session, run, now)
        number = session.scalar(select(func.max(Segment.number)).where(Segment.run_id == run_id))
        before = select(func.max(Segment.ended_at)).where(Segment.run_id == run_id)
        run.idle_seconds += max(0.0, now - (session.scalar(before) or now))
        segment = Segment(
            run_id=run_id,
            number=(number or 0) + 1,
            resumed_from=info.resumed_from_update,
            started_at=now,
        )
        session.add(segment)
        session.flush()
        if number is not None:
            session.add(_gone_on(segment))
        _fill(run, info, digest, now)
        run.provenance = origin
        return Begun(Place(run_id, segment.id), digest, run.lost, origin)


def _gone_on(segment: Segment) -> Event:
    """The journal's line of a run that had begun before."""
    update = segment.resumed_from
    return Event(
        run_id=segment.run_id,
        segment_id=segment.id,
        at=segment.started_at,
        level="info",
        code="resumed",
        message="The run begins again."
        if update is None
        else f"The run goes on after update {update}.",
        update=update,
        data={},
    )


def _run(store: Store, run_id: int) -> Run:
    with store.read() as session:
        run = session.get(Run, run_id)
    if run is None:
        raise StoreError(f"The store has no run {run_id} (any more), so it cannot be recorded.")
    return run


def _forget_requests(session: Session, run: Run, now: float) -> None:
    """What was asked of an earlier process must not meet this one."""
    since = run.queued_at or own_start()
    session.execute(
        update(Request)
        .where(Request.run_id == run.id, Request.handled_at.is_(None), Request.created_at < since)
        .values(handled_at=now)
    )


def _fill(run: Run, info: RunInfo, digest: Digest, now: float) -> None:
    run.uuid = info.run_id
    run.name, run.algorithm = text(info.name), info.algorithm
    run.model, run.output = text(Path(info.model).name), text(info.output)
    run.params, run.facts = plain(info.params), plain(info.facts)
    run.planned, run.completed, run.steps = info.updates, digest.completed, digest.steps
    run.status, run.message, run.ended_at = "running", "", None
    run.sparkline, run.findings = digest.sparkline.points(), digest.findings()
    run.stage, run.stage_done, run.stage_total = "", 0, 0
    if info.resumed_from_update is None:
        run.audited, run.last_reward, run.last_evaluation = [], None, None
        run.seconds_per_update = None
    run.started_at = run.started_at or now
    run.heartbeat_at = now
    run.pulse = Run.pulse + 1
    for column, value in identity().items():
        setattr(run, column, value)


def _history(session: Session, run_id: int, info: RunInfo) -> Digest:
    """What the updates that will still count have come to: those of the checkpoint. All of them are
    read, since what is healthy is judged by how a run started and by its best."""
    bound = info.resumed_from_update
    digest = Digest(info, completed=bound or 0)
    if bound is None:
        return digest
    last = session.execute(
        select(Update.steps, Update.tokens)
        .where(visible_in(session, run_id, Update), Update.kind == "train", Update.update <= bound)
        .order_by(Update.update.desc())
        .limit(1)
    ).first()
    if last is not None:
        digest.steps, digest.tokens = last.steps, last.tokens
    wanted = {metric.name for metric in guide_for(info.algorithm, info.params)}
    wanted |= {"reward/mean", "reward/max", "reward/std"}
    rows = session.execute(
        select(Metric.update, MetricName.name, Metric.value)
        .join(MetricName, MetricName.id == Metric.name_id)
        .where(visible_in(session, run_id, Metric), MetricName.name.in_(wanted))
        .where(Metric.update.between(1, bound))
        .order_by(Metric.update)
    )
    updates: dict[int, dict[str, float | None]] = defaultdict(dict)
    for number, name, value in rows:
        updates[number][name] = value
    for number in sorted(updates):
        digest.remember(number, updates[number])
    return digest
