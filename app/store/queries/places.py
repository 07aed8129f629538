"""Which update of a run is open, and which ones are beside it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.store.models import Group, Segment, Update
from app.store.queries.heat import latest_of
from app.store.queries.trajectories import Kind
from app.store.visible import visible_in


@dataclass(frozen=True, slots=True)
class Place:
    """An update among those that can be opened. ``status`` is trained, skipped or evaluation;
    ``begun`` where its answers are there and its numbers are not yet; ``absent`` where there is
    nothing of it, ``superseded`` where what there was is hidden."""

    update: int
    status: str
    answers: int
    groups: int
    trained: int
    reward_mean: float | None
    earlier: int | None
    later: int | None
    latest: int


def place_of(session: Session, run_id: int, kind: Kind, update: int | None) -> Place | None:
    """The update ``update``, or the latest; None while the run has none."""
    latest = latest_of(session, run_id, kind)
    if latest is None:
        return None
    opened = latest if update is None else update
    facts = session.execute(
        select(Update.status, Update.answers, Update.trained, Update.reward_mean)
        .where(visible_in(session, run_id, Update), Update.kind == kind, Update.update == opened)
        .limit(1)
    ).first()
    count, answers, trained, total = session.execute(
        select(
            func.count(),
            func.coalesce(func.sum(Group.size), 0),
            func.coalesce(func.sum(Group.trained), 0),
            func.sum(Group.reward_mean * Group.size),
        ).where(visible_in(session, run_id, Group), Group.kind == kind, Group.update == opened)
    ).one()
    mean = total / answers if answers else None
    if facts is not None:
        status, mean = facts.status, facts.reward_mean if facts.reward_mean is not None else mean
    elif count:
        status = "begun"
    else:
        status = "superseded" if _is_superseded(session, run_id, kind, opened) else "absent"
    return Place(
        update=opened,
        status=status,
        answers=answers,
        groups=count,
        trained=trained,
        reward_mean=mean,
        earlier=_neighbour(session, run_id, kind, opened, later=False),
        later=_neighbour(session, run_id, kind, opened, later=True),
        latest=latest,
    )


def _neighbour(
    session: Session, run_id: int, kind: Kind, opened: int, *, later: bool
) -> int | None:
    found = []
    for model in (Update, Group):
        column = model.update
        beyond = column > opened if later else column < opened
        found.append(
            session.scalar(
                select(func.min(column) if later else func.max(column)).where(
                    visible_in(session, run_id, model), model.kind == kind, beyond
                )
            )
        )
    known = [update for update in found if update is not None]
    return (min if later else max)(known, default=None)


def _is_superseded(session: Session, run_id: int, kind: Kind, update: int) -> bool:
    hidden = select(Group.id).where(
        Group.run_id == run_id, Group.kind == kind, Group.update == update
    )
    return session.scalar(hidden.limit(1)) is not None


def resumed_from(session: Session, run_id: int) -> int | None:
    """The update that the last resume went on from."""
    return session.scalar(
        select(Segment.resumed_from)
        .where(Segment.run_id == run_id, Segment.resumed_from.is_not(None))
        .order_by(Segment.number.desc())
        .limit(1)
    )
