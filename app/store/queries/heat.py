"""The rewards of a whole run at a glance: which share of each update's answers is how good."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from sqlalchemy import ColumnElement, Row, Select, and_, func, literal_column, select
from sqlalchemy.orm import Session

from app.store.models import Answer, Group, Update
from app.store.visible import visible_in

LEVELS = 5
COLUMNS = 120
"""As many as are still wide enough to press; longer runs have several updates in one."""
NEAR = 30
"""How many updates on either side of the open one are shown one by one in a long run."""
READ_AT_MOST = 6000
"""Rewards that are read for one strip; of a longer run, fewer updates of each column are."""


@dataclass(frozen=True, slots=True)
class Scale:
    """What counts as low and as high in a run: from 0, or its lowest reward, to its highest."""

    low: float
    high: float

    def place(self, reward: float) -> float:
        """Between 0 and 1."""
        return min(1.0, max(0.0, (reward - self.low) / (self.high - self.low)))

    @property
    def edges(self) -> tuple[float, ...]:
        """Where each level but the lowest begins."""
        width = (self.high - self.low) / LEVELS
        return tuple(self.low + level * width for level in range(1, LEVELS))


@dataclass(frozen=True, slots=True)
class Column:
    """Updates ``first`` to ``last``. ``shares`` of their answers, from the lowest level up; empty
    where nothing was rewarded. ``middle`` is one of them. ``status`` is that of a single update,
    else empty."""

    first: int
    middle: int
    last: int
    mean: float | None
    low: float | None
    high: float | None
    shares: tuple[float, ...]
    status: str


@dataclass(frozen=True, slots=True)
class Heat:
    """``near`` holds the updates around the open one where ``columns`` hold several each."""

    scale: Scale
    updates: int
    first: int | None
    latest: int | None
    columns: tuple[Column, ...]
    near: tuple[Column, ...]


Facts = Row[int, int, int, float | None, float | None, float | None, str]
FactsQuery = Select[int, int, int, float | None, float | None, float | None, str]


def heat_of(session: Session, run_id: int, kind: str, opened: int | None = None) -> Heat:
    """The strip of ``kind`` (train or evaluation), with the update ``opened`` in full detail."""
    of_kind = and_(visible_in(session, run_id, Update), Update.kind == kind)
    extent = session.execute(
        select(
            func.count(),
            func.min(Update.update),
            func.max(Update.update),
            func.min(Update.reward_min),
            func.max(Update.reward_max),
        ).where(of_kind)
    ).one()
    count, first, last, lowest, highest = extent
    begun = _begun(session, run_id, kind, -1 if last is None else last)
    scale = _scale(lowest, highest, begun)
    near: tuple[Column, ...] = ()
    if count <= COLUMNS:
        columns = _single(session, session.execute(_facts(of_kind)).all(), scale)
    else:
        columns = _stretches(session, of_kind, first, last, scale)
        if opened is not None:
            near = _single(session, _around(session, of_kind, opened), scale)
    if begun:
        columns += tuple(_column_of(update, rewards, scale) for update, rewards in begun.items())
    return Heat(
        scale=scale,
        updates=count + len(begun),
        first=columns[0].first if columns else None,
        latest=columns[-1].last if columns else None,
        columns=columns,
        near=near,
    )


def _begun(session: Session, run_id: int, kind: str, after: int) -> dict[int, list[float]]:
    """Rewards of updates whose answers are there and whose numbers are not yet."""
    rows = session.execute(
        select(Group.update, Answer.reward)
        .join(Answer, Answer.group_id == Group.id)
        .where(visible_in(session, run_id, Group), Group.kind == kind, Group.update > after)
        .order_by(Group.update)
    )
    rewards: dict[int, list[float]] = {}
    for update, reward in rows:
        rewards.setdefault(update, []).append(reward)
    return rewards


def _scale(lowest: float | None, highest: float | None, begun: dict[int, list[float]]) -> Scale:
    latest = [reward for rewards in begun.values() for reward in rewards]
    low = min([0.0, *latest] if lowest is None else [0.0, lowest, *latest])
    high = max([0.0, *latest] if highest is None else [0.0, highest, *latest])
    return Scale(low, high if high > low else low + 1.0)


def _facts(
    condition: ColumnElement[bool],
) -> Select[int, int, int, float | None, float | None, float | None, str]:
    return (
        select(
            Update.id,
            Update.update,
            Update.answers,
            Update.reward_mean,
            Update.reward_min,
            Update.reward_max,
            Update.status,
        )
        .where(condition)
        .order_by(Update.update, Update.id)
    )


def _around(session: Session, of_kind: ColumnElement[bool], opened: int) -> list[Facts]:
    """The updates nearest to ``opened``, in order."""
    before = _facts(and_(of_kind, Update.update < opened)).order_by(None)
    after = _facts(and_(of_kind, Update.update >= opened))
    earlier = session.execute(before.order_by(Update.update.desc()).limit(NEAR)).all()
    return [*reversed(earlier), *session.execute(after.limit(NEAR + 1)).all()]


def _single(session: Session, facts: Sequence[Facts], scale: Scale) -> tuple[Column, ...]:
    """A column for each update."""
    rewards = _rewards(session, [fact.id for fact in facts])
    return tuple(
        Column(
            first=fact.update,
            middle=fact.update,
            last=fact.update,
            mean=fact.reward_mean,
            low=fact.reward_min,
            high=fact.reward_max,
            shares=_shares([(fact.answers, rewards[fact.id])], scale),
            status=fact.status,
        )
        for fact in facts
    )


def _stretches(
    session: Session, of_kind: ColumnElement[bool], first: int, last: int, scale: Scale
) -> tuple[Column, ...]:
    """Equally long stretches of updates, at most ``COLUMNS`` of them. The database adds them up;
    rewards are read of some updates of each, evenly taken."""
    width = -(-(last - first + 1) // COLUMNS)
    # Literal, because PostgreSQL takes two parameters of one value for two expressions.
    place = (Update.update - literal_column(str(first))) // literal_column(str(width))
    weighted = func.sum(Update.reward_mean * Update.answers)
    stretches = session.execute(
        select(
            place.label("place"),
            func.min(Update.update).label("first"),
            func.max(Update.update).label("last"),
            func.sum(Update.answers).label("answers"),
            (weighted / func.nullif(func.sum(Update.answers), 0)).label("mean"),
            func.min(Update.reward_min).label("low"),
            func.max(Update.reward_max).label("high"),
        )
        .where(of_kind)
        .group_by(place)
        .order_by(place)
    ).all()
    step = -(-sum(stretch.answers for stretch in stretches) // READ_AT_MOST) or 1
    step = min(step, width)  # so that each stretch has one that is read
    sample: dict[int, list[tuple[int, int, list[float]]]] = {}
    for update, answers, rewards in session.execute(
        select(Update.update, Update.answers, Update.rewards)
        .where(of_kind, (Update.update - first) % step == 0)
        .order_by(Update.update)
    ):
        sample.setdefault((update - first) // width, []).append((update, answers, rewards))
    return tuple(
        Column(
            first=stretch.first,
            middle=read[len(read) // 2][0] if read else stretch.first,
            last=stretch.last,
            mean=stretch.mean,
            low=stretch.low,
            high=stretch.high,
            shares=_shares([(answers, rewards) for _, answers, rewards in read], scale),
            status="",
        )
        for stretch in stretches
        for read in [sample.get(stretch.place, [])]
    )


def _rewards(session: Session, numbers: Sequence[int]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for start in range(0, len(numbers), 500):
        some = select(Update.id, Update.rewards).where(Update.id.in_(numbers[start : start + 500]))
        found |= dict(session.execute(some).all())
    return found


def _shares(parts: Sequence[tuple[int, Sequence[float]]], scale: Scale) -> tuple[float, ...]:
    """``parts`` are updates: how many answers each has, and their rewards or a sample of them."""
    weights = [0.0] * LEVELS
    for answers, rewards in parts:
        if not rewards:
            continue
        ordered = sorted(rewards)
        below = [bisect_left(ordered, edge) for edge in scale.edges]
        for level, (start, end) in enumerate(pairwise([0, *below, len(ordered)])):
            weights[level] += (end - start) * answers / len(ordered)
    total = sum(weights)
    return tuple(weight / total for weight in weights) if total else ()


def _column_of(update: int, rewards: Sequence[float], scale: Scale) -> Column:
    return Column(
        first=update,
        middle=update,
        last=update,
        mean=sum(rewards) / len(rewards),
        low=min(rewards),
        high=max(rewards),
        shares=_shares([(len(rewards), rewards)], scale),
        status="begun",
    )


def latest_of(session: Session, run_id: int, kind: str) -> int | None:
    """The newest update that has answers or numbers."""
    found = [
        session.scalar(
            select(func.max(model.update)).where(
                visible_in(session, run_id, model), model.kind == kind
            )
        )
        for model in (Update, Group)
    ]
    return max((update for update in found if update is not None), default=None)
