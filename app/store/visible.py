"""Which rows count: those that no later segment of their run has superseded."""

from __future__ import annotations

from sqlalchemy import ColumnElement, and_, exists, or_, select
from sqlalchemy.orm import Session

from app.store.models import Answer, Group, Metric, Segment, Update

Told = type[Metric] | type[Update] | type[Group] | type[Answer]
"""The tables whose rows belong to an update of a segment."""


def visible(model: Told) -> ColumnElement[bool]:
    """The condition for rows of ``model``, in any query and over any runs. It looks at a segment
    for each row; where one run's rows are read, `visible_in` costs nothing."""
    superseded = exists().where(
        Segment.id == model.segment_id, Segment.visible_until < model.update
    )
    return ~superseded.correlate(model)


def visible_in(session: Session, run_id: int, model: Told) -> ColumnElement[bool]:
    """The condition for the rows of ``model`` that belong to one run and count, as bounds on
    columns that the tables' indexes hold. Segments that start later are not foreseen: ask in the
    transaction that reads."""
    own = model.run_id == run_id
    segments = session.execute(
        select(Segment.id, Segment.visible_until).where(Segment.run_id == run_id)
    ).all()
    if all(bound is None for _, bound in segments):
        return own
    parts = [
        model.segment_id == number
        if bound is None
        else and_(model.segment_id == number, model.update <= bound)
        for number, bound in segments
    ]
    return and_(own, or_(*parts))
