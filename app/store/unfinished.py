"""The end of a run that its process did not tell. Updates whose answers were told and that did not
end are shown, as not trained on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.orm import Session

from app.store.models import Answer, Group, Run, Segment, Update
from app.store.rows import Row, some


@dataclass(frozen=True, slots=True)
class Place:
    """The run and the segment that rows belong to."""

    run_id: int
    segment_id: int

    def __call__(self, rows: Iterable[Row]) -> list[Row]:
        ours = {"run_id": self.run_id, "segment_id": self.segment_id}
        return [row | ours for row in rows]


def untrain(session: Session, place: Place, number: int) -> None:
    """No adapter was trained on the answers of update ``number``."""
    groups = select(Group.id).where(*_of(place, number))
    fates = {"trained": False, "skip_reason": "update_skipped"}
    without = {"synchronize_session": False}
    of_answers = update(Answer).where(Answer.group_id.in_(groups), Answer.trained)
    session.execute(of_answers.values(fates), execution_options=without)
    of_groups = update(Group).where(Group.id.in_(groups)).values(trained=0)
    session.execute(of_groups, execution_options=without)


def end_columns(status: str, message: str, at: float) -> Row:
    """The columns of a run that ended at ``at``, whoever says so."""
    return {
        "status": status,
        "message": message,
        "ended_at": at,
        "stage": "",
        "stage_done": 0,
        "stage_total": 0,
    }


def close_run(session: Session, run: Run, status: str, message: str, at: float) -> None:
    """End a run whose process is gone, with its segment and the update that it left open. On
    PostgreSQL ``run`` is to be locked, or two servers would each end the update."""
    for column, value in end_columns(status, message, at).items():
        setattr(run, column, value)
    run.pulse = Run.pulse + 1
    _close_updates(session, run, at)
    open_ones = (Segment.run_id == run.id, Segment.ended_at.is_(None))
    session.execute(update(Segment).where(*open_ones).values(ended_at=at, status=status))


def _close_updates(session: Session, run: Run, at: float) -> None:
    """Give the updates that the last segment of a dead run left open their end."""
    segment = select(func.max(Segment.id)).where(Segment.run_id == run.id)
    place = Place(run.id, session.scalar(segment) or 0)
    ended = select(Update.update).where(
        Update.run_id == run.id,
        Update.segment_id == place.segment_id,
        Update.kind == "train",
    )
    told = select(Group.update).where(*_of(place), Group.update.not_in(ended)).distinct()
    for number in session.scalars(told).all():
        untrain(session, place, number)
        _end(session, run, place, number, at)


def _end(session: Session, run: Run, place: Place, number: int, at: float) -> None:
    groups = select(Group.id).where(*_of(place, number))
    answers = session.execute(
        select(Answer.reward, Answer.tokens).where(Answer.group_id.in_(groups))
    ).all()
    rewards = sorted(reward for reward, _ in answers)
    before = select(func.max(Update.tokens)).where(
        Update.run_id == run.id, Update.segment_id == place.segment_id
    )
    session.add(
        Update(
            run_id=run.id,
            segment_id=place.segment_id,
            update=number,
            kind="train",
            status="skipped",
            at=at,
            steps=run.steps,
            tokens=(session.scalar(before) or 0) + sum(tokens for _, tokens in answers),
            answers=len(answers),
            trained=0,
            reward_mean=sum(rewards) / len(rewards) if rewards else None,
            reward_min=rewards[0] if rewards else None,
            reward_max=rewards[-1] if rewards else None,
            rewards=some(rewards),
        )
    )


def _of(place: Place, number: int | None = None) -> tuple[ColumnElement[bool], ...]:
    own = (
        Group.run_id == place.run_id,
        Group.segment_id == place.segment_id,
        Group.kind == "train",
    )
    return own if number is None else (*own, Group.update == number)
