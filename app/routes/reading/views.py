"""The parts of the page, as its template takes them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.routes.reading.badges import Badge, of_answer, of_group
from app.routes.reading.differences import Differences, Stretch, differences
from app.routes.reading.state import State
from app.routes.reading.text import Run, Shown, runs_of, shown
from app.server.templating import number
from app.store.queries.heat import Column, Heat, Scale
from app.store.queries.search import AnswerHit, Hits
from app.store.queries.trajectories import AnswerRow, GroupLine, PromptText

_STEP = 10
"""Units of the strip's drawing from one column to the next."""
_ROUNDING = 1e-6


def score(value: float | None) -> str:
    """A reward or an advantage: two decimals, or what it takes to tell it from 0."""
    if value is None or not math.isfinite(value) or abs(value) >= 100:
        return number(value)
    return number(value, 1) if 0 < abs(value) < 0.005 else f"{value:.2f}".replace("-", "−")


def short(value: float | None) -> str:
    """A part of a reward, with as many digits as it has, three at most."""
    return number(value) if value is None else f"{value:.3g}".replace("-", "−")


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle. Lengths are shares of 100 from the top; ``level`` is how deep its colour is."""

    x: float
    y: float
    height: float
    level: int = 0


@dataclass(frozen=True, slots=True)
class Cell:
    """A column of the strip as it is drawn."""

    x: int
    label: str
    address: str
    bars: tuple[Bar, ...]
    current: bool


def cells(columns: Sequence[Column], opened: int | None, state: State) -> Iterator[Cell]:
    for index, column in enumerate(columns):
        current = opened is not None and column.first <= opened <= column.last
        yield Cell(
            x=index * _STEP,
            label=_label(column),
            address=state.url(update=column.middle, q="", scope="update"),
            bars=tuple(_bars(column, index * _STEP)),
            current=current,
        )


def _bars(column: Column, x: int) -> Iterator[Bar]:
    """The highest rewards on top."""
    bottom = 100.0
    for level, share in enumerate(column.shares):
        if share:
            bottom -= 100 * share
            yield Bar(x, round(bottom, 2), round(100 * share, 2), level)


def _label(column: Column) -> str:
    where = f"update {column.first}"
    if column.last != column.first:
        where = f"updates {column.first} to {column.last}"
    if column.mean is None:
        return f"{where}: no rewards"
    span = f"{score(column.low)} to {score(column.high)}"
    state = {"skipped": ", skipped", "begun": ", not ended"}.get(column.status, "")
    return f"{where}{state}: mean {score(column.mean)}, {span}"


@dataclass(frozen=True, slots=True)
class Strip:
    heat: Heat
    opened: int | None

    def columns(self, state: State) -> list[Cell]:
        return list(cells(self.heat.columns, self.opened, state))

    def near(self, state: State) -> list[Cell]:
        return list(cells(self.heat.near, self.opened, state))

    @property
    def low(self) -> str:
        return score(self.heat.scale.low)

    @property
    def high(self) -> str:
        return score(self.heat.scale.high)

    @property
    def widest(self) -> int:
        """How many updates a column holds."""
        return max((c.last - c.first + 1 for c in self.heat.columns), default=1)


@dataclass(frozen=True, slots=True)
class GroupView:
    line: GroupLine
    scale: Scale

    @property
    def title(self) -> tuple[Run, ...]:
        return runs_of(self.line.line)

    @property
    def bars(self) -> list[Bar]:
        heights = [8 + 92 * self.scale.place(reward) for reward in self.line.rewards]
        return [Bar(8 * i, round(100 - h, 1), round(h, 1)) for i, h in enumerate(heights)]

    @property
    def badges(self) -> tuple[Badge, ...]:
        return of_group(self.line)

    @property
    def span(self) -> str:
        low, high = score(self.line.reward_min), score(self.line.reward_max)
        return low if low == high else f"{low} to {high}"

    @property
    def mean(self) -> str:
        return score(self.line.reward_mean)

    @property
    def spread(self) -> str:
        return score(self.line.spread)


@dataclass(frozen=True, slots=True)
class AnswerView:
    """``line`` is how its prompt begins, where that is not on the page anyhow."""

    row: AnswerRow
    scale: Scale
    line: str = ""
    whole: bool = False

    @property
    def fill(self) -> float:
        return round(100 * self.scale.place(self.row.reward), 1)

    @property
    def title(self) -> tuple[Run, ...]:
        return runs_of(self.line)

    @property
    def text(self) -> Shown | None:
        text = self.row.text
        return None if text is None else shown(text, self.row.chars, whole=self.whole)

    @property
    def judge(self) -> Shown | None:
        words = self.row.judge_words
        return None if not words else shown(words, len(words))

    @property
    def badges(self) -> tuple[Badge, ...]:
        return of_answer(self.row)

    @property
    def reward(self) -> str:
        return score(self.row.reward)

    @property
    def advantage(self) -> str:
        if not self.row.trained:
            return "—"
        return ("+" if self.row.advantage > 0 else "") + score(self.row.advantage)

    @property
    def sense(self) -> str:
        """Whether training makes the answer more likely (up) or less (down)."""
        if not self.row.trained or not self.row.advantage:
            return ""
        return "up" if self.row.advantage > 0 else "down"

    @property
    def parts(self) -> list[tuple[tuple[Run, ...], str]]:
        """What the reward is made of: what the program says of its own, and what came to it."""
        parts = [(runs_of(name), short(value)) for name, value in self.row.parts.items()]
        penalty = self.row.reward - self.row.reward_raw - self.row.judge_term
        for name, value in (("judge", self.row.judge_term), ("penalty", penalty)):
            if abs(value) > _ROUNDING * max(1.0, abs(self.row.reward)):
                parts.append((runs_of(name), ("+" if value > 0 else "") + short(value)))
        return parts


@dataclass(frozen=True, slots=True)
class PromptView:
    prompt: PromptText

    @property
    def messages(self) -> list[tuple[str, Shown]]:
        return [
            (role, shown(content, len(content), whole=True))
            for role, content in self.prompt.messages
        ]


@dataclass(frozen=True, slots=True)
class Comparison:
    """``same_prompt``: both answer the same conversation."""

    first: AnswerView
    second: AnswerView

    @property
    def same_prompt(self) -> bool:
        return self.first.row.prompt_id == self.second.row.prompt_id

    @property
    def words(self) -> Differences | None:
        one, other = self.first.row.text, self.second.row.text
        return None if one is None or other is None else differences(one, other)

    @property
    def sides(self) -> list[tuple[AnswerView, tuple[Stretch, ...] | None]]:
        """Each answer, with its text cut where they differ."""
        words = self.words
        return [
            (self.first, words.first if words else None),
            (self.second, words.second if words else None),
        ]


@dataclass(frozen=True, slots=True)
class Found:
    """What a search came to, newest update first."""

    hits: Hits

    @staticmethod
    def runs(text: str) -> tuple[Run, ...]:
        return runs_of(text)

    @property
    def updates(self) -> list[tuple[int, str, list[AnswerHit]]]:
        groups: list[tuple[int, str, list[AnswerHit]]] = []
        for hit in self.hits.answers:
            update, kind = hit.answer.update, hit.answer.kind
            if not groups or groups[-1][:2] != (update, kind):
                groups.append((update, kind, []))
            groups[-1][2].append(hit)
        return groups
