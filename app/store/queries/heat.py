"""The rewards of a whole run at a glance: which share of each update's answers is how good."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sqlalchemy import Row, func, select
from sqlalchemy.orm import Session

from app.store.models import Answer, Group, Update
from app.store.visible import visible_in

LEVELS = 5
COLUMNS = 120
"""As many as are still wide enough to press; longer runs have several updates in one."""
NEAR = 30
"""How many updates on either side of the open one are shown one by one in a long run."""
READ_AT_MOST = 20_000
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


def heat_of(session: Session, run_id: int, kind: str, opened: int | None = None) -> Heat:
    """The strip of ``kind`` (train or evaluation), with the update ``opened`` in full detail."""
    facts = session.execute(
        select(
            Update.id,
            Update.update,
            Update.answers,
            Update.reward_mean,
            Update.reward_min,
            Update.reward_max,
            Update.status,
        )
        .where(visible_in(session, run_id, Update), Update.kind == kind)
        .order_by(Update.update, Update.id)
    ).all()
    begun = _begun(session, run_id, kind, facts[-1].update if facts else -1)
    scale = _scale([fact.reward_min for fact in facts], [fact.reward_max for fact in facts], begun)
    buckets = list(_buckets(facts))
    columns = _columns(session, buckets, scale)
    near: tuple[Column, ...] = ()
    if len(facts) > COLUMNS and opened is not None:
        middle = sum(fact.update < opened for fact in facts)
        around = facts[max(0, middle - NEAR) : middle + NEAR + 1]
        near = _columns(session, [[fact] for fact in around], scale)
    if begun:
        columns += tuple(_column_of(update, rewards, scale) for update, rewards in begun.items())
    return Heat(
        scale=scale,
        updates=len(facts) + len(begun),
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


def _scale(
    lows: Sequence[float | None], highs: Sequence[float | None], begun: dict[int, list[float]]
) -> Scale:
    latest = [reward for rewards in begun.values() for reward in rewards]
    low = min([0.0, *(low for low in lows if low is not None), *latest])
    high = max([0.0, *(high for high in highs if high is not None), *latest])
    return Scale(low, high if high > low else low + 1.0)


def _buckets(facts: Sequence[Facts]) -> Iterator[Sequence[Facts]]:
    """Equally long stretches of updates, at most ``COLUMNS`` of them."""
    width = -(-len(facts) // COLUMNS)
    for start in range(0, len(facts), max(1, width)):
        yield facts[start : start + width]


def _columns(
    session: Session, buckets: Sequence[Sequence[Facts]], scale: Scale
) -> tuple[Column, ...]:
    chosen = _chosen(buckets)
    rewards = _rewards(session, [fact.id for facts in chosen for fact in facts])
    return tuple(
        Column(
            first=bucket[0].update,
            middle=bucket[len(bucket) // 2].update,
            last=bucket[-1].update,
            mean=_mean(bucket),
            low=min((f.reward_min for f in bucket if f.reward_min is not None), default=None),
            high=max((f.reward_max for f in bucket if f.reward_max is not None), default=None),
            shares=_shares([(f.answers, rewards[f.id]) for f in read], scale),
            status=bucket[0].status if len(bucket) == 1 else "",
        )
        for bucket, read in zip(buckets, chosen, strict=True)
    )


def _chosen(buckets: Sequence[Sequence[Facts]]) -> list[Sequence[Facts]]:
    """All updates of each bucket, or as many, evenly taken, as may be read."""
    total = sum(min(fact.answers, 512) for bucket in buckets for fact in bucket)
    step = -(-total // READ_AT_MOST) or 1
    return [bucket[::step] for bucket in buckets]


def _rewards(session: Session, numbers: Sequence[int]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for start in range(0, len(numbers), 500):
        some = select(Update.id, Update.rewards).where(Update.id.in_(numbers[start : start + 500]))
        found |= dict(session.execute(some).all())
    return found


def _mean(bucket: Sequence[Facts]) -> float | None:
    known = [(fact.reward_mean, fact.answers) for fact in bucket if fact.reward_mean is not None]
    weight = sum(answers for _, answers in known)
    return sum(mean * answers for mean, answers in known) / weight if weight else None


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
