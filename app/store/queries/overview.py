"""What a run has come to, in few numbers and one group of answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from app.store.models import Answer, Group, Prompt
from app.store.queries.metrics import last_values, recent_values
from app.store.visible import visible_in

SHOWN_CHARACTERS = 600
START = 20
RECENT = 40
"""Updates of which a trend is told."""


@dataclass(frozen=True, slots=True)
class Shown:
    """An answer with its prompt, both cut at `SHOWN_CHARACTERS`. ``text`` is None where it was not
    kept."""

    id: int
    group: int
    prompt: str
    text: str | None
    is_cut: bool
    reward: float
    advantage: float
    tokens: int
    truncated: bool
    trained: bool
    audit: list[str]


@dataclass(frozen=True, slots=True)
class Latest:
    """The newest update's answers, ``shown`` of them: the best and the worst of its group with the
    widest spread, or of all where each prompt has one answer."""

    update: int
    groups: int
    group: int | None
    shown: list[Shown]


@dataclass(frozen=True, slots=True)
class Numbers:
    """``last`` has the newest value of each metric; ``start`` and ``main`` are the first `START`
    and the last `RECENT` values of the curve that the run is about, with their updates,
    ``evaluations`` the last ones of the held-out measure."""

    last: dict[str, float]
    start: list[tuple[int, float]]
    main: list[tuple[int, float]]
    evaluations: list[tuple[int, float]]


def numbers_of(session: Session, run_id: int, main: str, held_out: str) -> Numbers:
    """``main`` and ``held_out`` are the names of the two curves that matter most."""
    last = last_values(session, run_id)
    return Numbers(
        last={one.name: one.value for one in last if one.value is not None},
        start=_known(recent_values(session, run_id, main, START, oldest=True)),
        main=_known(recent_values(session, run_id, main, RECENT)),
        evaluations=_known(recent_values(session, run_id, held_out, RECENT)),
    )


def latest_answers(session: Session, run_id: int) -> Latest | None:
    """Of the newest update that has any; None where no answer was kept."""
    ours = visible_in(session, run_id, Group), Group.kind == "train"
    update = session.scalar(select(func.max(Group.update)).where(*ours))
    if update is None:
        return None
    count, largest = session.execute(
        select(func.count(), func.max(Group.size)).where(*ours, Group.update == update)
    ).one()
    asked = _answers().where(*ours, Group.update == update)
    chosen = None
    if largest > 1:
        chosen = session.scalar(
            select(Group.number)
            .where(*ours, Group.update == update)
            .order_by(Group.spread.desc(), Group.number)
            .limit(1)
        )
        asked = asked.where(Group.number == chosen)
    best = session.execute(asked.order_by(Answer.reward.desc(), Answer.id).limit(1)).all()
    worst = session.execute(asked.order_by(Answer.reward, Answer.id.desc()).limit(1)).all()
    shown = {row.id: _shown(*row) for row in (*best, *worst)}
    return Latest(update, count, chosen, list(shown.values()))


def _answers() -> Select[Any]:
    return (
        select(
            Answer.id,
            Group.number,
            func.substr(Prompt.text, 1, SHOWN_CHARACTERS),
            func.substr(Answer.text, 1, SHOWN_CHARACTERS),
            Answer.chars,
            Answer.reward,
            Answer.advantage,
            Answer.tokens,
            Answer.truncated,
            Answer.trained,
            Answer.audit,
        )
        .join(Group, Group.id == Answer.group_id)
        .join(Prompt, Prompt.id == Group.prompt_id)
    )


def _shown(
    number: int,
    group: int,
    prompt: str,
    text: str | None,
    chars: int,
    reward: float,
    advantage: float,
    tokens: int,
    truncated: bool,
    trained: bool,
    audit: list[str],
) -> Shown:
    is_cut = text is not None and len(text) < chars
    return Shown(
        number, group, prompt, text, is_cut, reward, advantage, tokens, truncated, trained, audit
    )


def _known(values: list[tuple[int, float | None]]) -> list[tuple[int, float]]:
    return [(update, value) for update, value in values if value is not None]
