"""The queue of runs, in the database: what people ask for, and which run is next."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import CursorResult, func, select, text, update
from sqlalchemy.orm import Session

from app.store.alive import HERE, identity, is_alive
from app.store.database import Store
from app.store.models import Event, Request, Run
from app.store.status import ACTIVE, DRAFT, RESUMABLE
from app.store.unfinished import close_run
from app.store.values import text as storable
from trainer.errors import RetrogradError

RequestKind = Literal["stop", "checkpoint", "evaluate"]
# Any number, as long as every server takes the same one.
_LOCK = 7_216_031_105


class QueueError(RetrogradError):
    """What was asked cannot be done with a run in its present state."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A run that this server, and no other, is to start now."""

    run_id: int
    folder: str
    resumes: bool


def enqueue(store: Store, run_id: int, **columns: object) -> None:
    """Put a draft at the end of the queue, or a run that has ended and will go on. ``columns`` are
    set with it. Raises QueueError."""
    now = time.time()
    with store.write() as session:
        changed = _change(
            session,
            run_id,
            (DRAFT, *RESUMABLE),
            status="queued",
            queued_at=now,
            ended_at=None,
            message="",
            host=HERE,
            **columns,
        )
        if not changed:
            raise _impossible(session, run_id, "queued")


def claim(store: Store, capacity: int) -> Claim | None:
    """Take the oldest queued run of this machine, where fewer than ``capacity`` are at work.
    Servers that share the store never get the same run, nor more together than one of them allows.
    """
    with store.read() as session:
        if session.scalar(select(Run.id).where(*_waiting()).limit(1)) is None:
            return None
    with store.write() as session:
        if session.get_bind().dialect.name == "postgresql":
            session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        if at_work(session) >= capacity:
            return None
        waiting = session.scalars(
            select(Run).where(*_waiting()).order_by(Run.queued_at, Run.id)
        ).all()
        # One that goes on may have a process that still puts things away.
        run = next((r for r in waiting if not is_alive(r)), None)
        if run is None:
            return None
        claimed = _change(
            session,
            run.id,
            ("queued",),
            status="starting",
            pid=None,
            process_started_at=None,
            heartbeat_at=time.time(),
        )
        return Claim(run.id, run.folder, run.started_at is not None) if claimed else None


def started(store: Store, run_id: int, pid: int, since: float | None) -> None:
    """The process of a claimed run is there."""
    with store.write() as session:
        _change(session, run_id, ACTIVE, pid=pid, process_started_at=since)


def begins(store: Store, run_id: int, pid: int, since: float | None) -> bool:
    """Asked by a worker about itself: whether it is the one that is to make the run."""
    with store.write() as session:
        run = session.get(Run, run_id, with_for_update=True)
        if run is None or run.status not in ("starting", "stopping") or run.pid not in (None, pid):
            return False
        run.pid, run.process_started_at, run.heartbeat_at = pid, since, time.time()
        run.pulse = Run.pulse + 1
        return True


def take(store: Store, run_id: int) -> None:
    """Go on with a run that has ended, in this process and past the queue. Raises QueueError."""
    with store.write() as session:
        changed = _change(
            session,
            run_id,
            RESUMABLE,
            status="starting",
            queued_at=None,
            ended_at=None,
            message="",
            heartbeat_at=time.time(),
            **identity(),
        )
        if not changed:
            raise _impossible(session, run_id, "resumed")


def ask(store: Store, run_id: int, kind: RequestKind) -> str:
    """Ask a run to do something; returns what comes of it, in a sentence. Raises QueueError."""
    now = time.time()
    with store.write() as session:
        if kind == "stop" and _change(
            session,
            run_id,
            ("queued",),
            status="stopped",
            ended_at=now,
            message="Taken out of the queue before it began.",
        ):
            session.add(_told(run_id, now, "Somebody took the run out of the queue."))
            return "The run was taken out of the queue."
        run = session.get(Run, run_id)
        if run is None or run.status not in ACTIVE:
            raise _impossible(session, run_id, f"asked to {kind}")
        if kind != "stop" and run.status == "stopping":
            raise QueueError(f"Run {run_id} is stopping: there is no other update to {kind} after.")
        if kind == "evaluate" and run.params and run.params.get("evaluation") is None:
            raise QueueError(f"Run {run_id} has no held-out prompts: its file has no [evaluation].")
        session.add(Request(run_id=run_id, kind=kind, created_at=now))
        if kind == "stop":
            session.add(_told(run_id, now, "Somebody asked the run to stop."))
        values: dict[str, Any] = {"status": "stopping"} if kind == "stop" else {}
        _change(session, run_id, ACTIVE, **values)
    return {
        "stop": "The run ends after the update at hand, and keeps its adapter.",
        "checkpoint": "A checkpoint is saved after the update at hand; the journal says when.",
        "evaluate": "The held-out prompts are evaluated after the update at hand; the journal says "
        "when.",
    }[kind]


def end(store: Store, run_id: int, status: str, message: str, *, pid: int | None = None) -> bool:
    """Note how a run ended whose own process did not say so. Does nothing, and returns False, where
    it has ended already or belongs to another process than ``pid``."""
    with store.write() as session:
        run = session.get(Run, run_id, with_for_update=True)
        if run is None or run.status not in ACTIVE or (pid is not None and run.pid != pid):
            return False
        close_run(session, run, status, storable(message), time.time())
        return True


def put_back(store: Store, run_id: int) -> None:
    """A run that was claimed by a server that ended before it could start it."""
    with store.write() as session:
        _change(session, run_id, ("starting",), status="queued", heartbeat_at=None)


def at_work(session: Session) -> int:
    """Runs of this machine that have a process, or are about to get one: also those of terminals,
    since they take its cores and its memory as well."""
    return session.scalar(select(func.count()).select_from(Run).where(*_at_work())) or 0


def names_at_work(session: Session) -> list[str]:
    """Of the runs that `at_work` counts, in the order they were entered in."""
    return list(session.scalars(select(Run.name).where(*_at_work()).order_by(Run.id)))


def ahead(session: Session, run_id: int | None = None) -> int:
    """Runs that are at work or queued, before ``run_id`` where it is queued itself."""
    waiting = session.scalars(select(Run.id).where(*_waiting()).order_by(Run.queued_at, Run.id))
    before = list(waiting)
    if run_id in before:
        before = before[: before.index(run_id)]
    return at_work(session) + len(before)


def _at_work() -> tuple[Any, ...]:
    return (Run.status.in_(ACTIVE), Run.host == HERE)


def _waiting() -> tuple[Any, ...]:
    return (Run.status == "queued", Run.host == HERE)


def _change(session: Session, run_id: int, statuses: tuple[str, ...], **values: Any) -> bool:  # noqa: ANN401 - columns
    """Set columns of a run that has one of ``statuses``; whether it has."""
    result = session.execute(
        update(Run)
        .where(Run.id == run_id, Run.status.in_(statuses))
        .values(pulse=Run.pulse + 1, **values)
        .execution_options(synchronize_session=False)
    )
    assert isinstance(result, CursorResult)
    return result.rowcount == 1


def _told(run_id: int, at: float, message: str) -> Event:
    """A line of the journal about a wish that ends a run; of others the trainer tells what came."""
    return Event(
        run_id=run_id, at=at, level="info", code="stop_asked", message=message, update=None, data={}
    )


def _impossible(session: Session, run_id: int, what: str) -> QueueError:
    run = session.get(Run, run_id)
    if run is None:
        return QueueError(f"There is no run {run_id} in this store.")
    return QueueError(f"Run {run_id} cannot be {what}, because it is {run.status}.")
