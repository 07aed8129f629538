"""The answers of a run, as they are read: an update, its groups, and the answers in them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, cast, get_args

from sqlalchemy import ColumnElement, Select, select
from sqlalchemy.orm import Session

from app.store.models import Answer, Group, Prompt
from app.store.visible import visible, visible_in

Kind = Literal["train", "evaluation"]
GroupOrder = Literal["order", "reward", "spread", "length"]
AnswerOrder = Literal["reward", "advantage", "length"]
KINDS: tuple[Kind, ...] = get_args(Kind)
GROUP_ORDERS: tuple[GroupOrder, ...] = get_args(GroupOrder)
ANSWER_ORDERS: tuple[AnswerOrder, ...] = get_args(AnswerOrder)

GROUPS_AT_ONCE = 100
_BARS = 32
_LINE_CHARS = 160


@dataclass(frozen=True, slots=True)
class GroupLine:
    """A group in the list: ``rewards`` in the order of its members, at most 32, evenly taken from
    the sorted ones of a larger group. ``reasons`` counts answers that were not trained on."""

    id: int
    number: int
    prompt_id: int
    line: str
    size: int
    trained: int
    reward_mean: float
    reward_min: float
    reward_max: float
    spread: float
    tokens_mean: float
    rewards: tuple[float, ...]
    reasons: Mapping[str, int]
    truncated: int
    duplicates: int
    audit: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class AnswerRow:
    """An answer and where it stands. ``text`` is None where it was not kept."""

    id: int
    update: int
    kind: Kind
    group_id: int
    group: int
    prompt_id: int
    member: int
    text: str | None
    chars: int
    tokens: int
    truncated: bool
    reward: float
    reward_raw: float
    judge_term: float
    judge_words: str | None
    parts: Mapping[str, float | None]
    advantage: float
    trained: bool
    skip_reason: str | None
    audit: tuple[str, ...]
    duplicate: bool


@dataclass(frozen=True, slots=True)
class PromptText:
    """``messages`` are (role, content)."""

    id: int
    key: str
    line: int
    messages: tuple[tuple[str, str], ...]

    @property
    def question(self) -> str:
        """As a `PromptLine` has it: what the last message says."""
        return self.messages[-1][1] if self.messages else ""


@dataclass(frozen=True, slots=True)
class Occasion:
    """One time that a prompt was answered."""

    update: int
    kind: str
    group: int
    size: int
    reward_mean: float
    reward_max: float


def group_numbers(
    session: Session, run_id: int, kind: Kind, update: int, order: GroupOrder
) -> list[int]:
    """The numbers of an update's groups, in the order of the list."""
    found = select(Group.number).where(
        visible_in(session, run_id, Group), Group.kind == kind, Group.update == update
    )
    return list(session.scalars(found.order_by(*_in_order(order))))


def _in_order(order: GroupOrder) -> tuple[Any, ...]:
    """The best, the most different or the longest come first."""
    columns = {"reward": Group.reward_mean, "spread": Group.spread, "length": Group.tokens_mean}
    first = () if order == "order" else (columns[order].desc(),)
    return (*first, Group.number, Group.id)


def groups_of(
    session: Session,
    run_id: int,
    kind: Kind,
    update: int,
    order: GroupOrder = "order",
    *,
    skip: int = 0,
    limit: int = GROUPS_AT_ONCE,
) -> list[GroupLine]:
    """The groups of an update, ``limit`` of them after the first ``skip``."""
    rows = session.execute(
        select(Group, Prompt.messages)
        .join(Prompt, Prompt.id == Group.prompt_id)
        .where(visible_in(session, run_id, Group), Group.kind == kind, Group.update == update)
        .order_by(*_in_order(order))
        .offset(skip)
        .limit(limit)
    ).all()
    notes = _notes(session, [group.id for group, _ in rows])
    return [_line(group, messages, notes.get(group.id, [])) for group, messages in rows]


Note = tuple[int, float, bool, bool, str | None, bool, list[str]]


def _notes(session: Session, groups: Sequence[int]) -> dict[int, list[Note]]:
    """What the list tells of the answers of each group."""
    rows = session.execute(
        select(
            Answer.group_id,
            Answer.reward,
            Answer.truncated,
            Answer.trained,
            Answer.skip_reason,
            Answer.duplicate,
            Answer.audit,
        )
        .where(Answer.group_id.in_(groups))
        .order_by(Answer.group_id, Answer.member)
    )
    return {group: list(notes) for group, notes in groupby(rows, lambda note: note[0])}


def _line(group: Group, messages: Sequence[Mapping[str, str]], notes: Sequence[Note]) -> GroupLine:
    rewards = [note[1] for note in notes]
    if len(rewards) > _BARS:
        rewards.sort()
        rewards = [rewards[i * (len(rewards) - 1) // (_BARS - 1)] for i in range(_BARS)]
    return GroupLine(
        id=group.id,
        number=group.number,
        prompt_id=group.prompt_id,
        line=first_line(messages),
        size=group.size,
        trained=group.trained,
        reward_mean=group.reward_mean,
        reward_min=group.reward_min,
        reward_max=group.reward_max,
        spread=group.spread,
        tokens_mean=group.tokens_mean,
        rewards=tuple(rewards),
        reasons=_counts([note[4] for note in notes if note[4] and not note[3]]),
        truncated=sum(note[2] for note in notes),
        duplicates=sum(note[5] for note in notes),
        audit=_counts([flag for note in notes for flag in note[6]]),
    )


def _counts(names: Sequence[str]) -> dict[str, int]:
    return {name: names.count(name) for name in sorted(set(names))}


def first_line(messages: Sequence[Mapping[str, str]]) -> str:
    """How a prompt begins: the first line of its last message that says something."""
    content = messages[-1]["content"].strip() if messages else ""
    line = content[: 4 * _LINE_CHARS].split("\n", 1)[0].strip()
    return line if len(line) <= _LINE_CHARS else line[: _LINE_CHARS - 1] + "…"


def answer_rows() -> Select[Answer, Kind, int, int]:
    """All that `as_row` takes."""
    columns = (Answer, Group.kind, Group.number, Group.prompt_id)
    return cast(
        "Select[Answer, Kind, int, int]",
        select(*columns).join(Group, Group.id == Answer.group_id),
    )


def as_row(answer: Answer, kind: Kind, number: int, prompt_id: int) -> AnswerRow:
    return AnswerRow(
        id=answer.id,
        update=answer.update,
        kind=kind,
        group_id=answer.group_id,
        group=number,
        prompt_id=prompt_id,
        member=answer.member,
        text=answer.text,
        chars=answer.chars,
        tokens=answer.tokens,
        truncated=answer.truncated,
        reward=answer.reward,
        reward_raw=answer.reward_raw,
        judge_term=answer.judge_term,
        judge_words=answer.judge_words,
        parts=answer.parts,
        advantage=answer.advantage,
        trained=answer.trained,
        skip_reason=answer.skip_reason,
        audit=tuple(answer.audit),
        duplicate=answer.duplicate,
    )


def answers_of(session: Session, group_id: int, order: AnswerOrder = "reward") -> list[AnswerRow]:
    """All answers of a group, the best, the most advantageous or the longest first."""
    orders: dict[AnswerOrder, ColumnElement[Any]] = {
        "reward": Answer.reward.desc(),
        "advantage": Answer.advantage.desc(),
        "length": Answer.tokens.desc(),
    }
    rows = session.execute(
        answer_rows().where(Answer.group_id == group_id).order_by(orders[order], Answer.member)
    )
    return [as_row(*row) for row in rows]


def find_answer(session: Session, run_id: int, answer_id: int) -> tuple[AnswerRow, bool] | None:
    """An answer of the run, and whether it counts (no later segment has superseded it)."""
    row = session.execute(
        answer_rows()
        .add_columns(visible(Answer))
        .where(Answer.id == answer_id, Answer.run_id == run_id)
    ).first()
    return None if row is None else (as_row(*row[:4]), bool(row[4]))


def prompt_of(session: Session, prompt_id: int) -> PromptText:
    return _prompt(session.get_one(Prompt, prompt_id))


def prompts_of(session: Session, numbers: Collection[int]) -> dict[int, PromptText]:
    """By id."""
    found = session.scalars(select(Prompt).where(Prompt.id.in_(numbers)))
    return {prompt.id: _prompt(prompt) for prompt in found}


def _prompt(prompt: Prompt) -> PromptText:
    messages = tuple((message["role"], message["content"]) for message in prompt.messages)
    return PromptText(prompt.id, prompt.key, prompt.line, messages)


def lines_of(session: Session, prompts: Sequence[int]) -> dict[int, str]:
    """How each of these prompts begins."""
    found = select(Prompt.id, Prompt.messages).where(Prompt.id.in_(set(prompts)))
    return {number: first_line(messages) for number, messages in session.execute(found)}


def occasions_of(session: Session, prompt_id: int, limit: int = 200) -> list[Occasion]:
    """When a prompt was answered, the latest ``limit`` times, in order."""
    rows = session.execute(
        select(
            Group.update, Group.kind, Group.number, Group.size, Group.reward_mean, Group.reward_max
        )
        .where(Group.prompt_id == prompt_id, visible(Group))
        .order_by(Group.update.desc(), Group.id.desc())
        .limit(limit)
    )
    return [Occasion(*row) for row in rows][::-1]
