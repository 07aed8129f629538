"""What a run has come to, followed from what its monitor is told: the values that ``runs`` keeps,
and the rows for the other tables."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from app.store.inbox import EndTold, EventTold, GroupTold, RunTold, Told, ValuesTold
from app.store.rows import (
    Rows,
    Tally,
    event_row,
    group_row,
    metric_rows,
    update_row,
)
from app.store.sparkline import Sparkline
from app.store.unfinished import end_columns
from app.store.values import number, plain, text
from trainer.config.common import AuditSection
from trainer.health.audit import MEASURES
from trainer.health.findings import Watch
from trainer.health.headline import headline_of
from trainer.health.resolve import lookup
from trainer.monitor import RunInfo, UpdateStatus

_PACE_OVER = 10
_SECONDS = "timing/update_seconds"


@dataclass(slots=True)
class Digest:
    """``completed``, ``steps`` and ``tokens`` are where a resumed run goes on."""

    info: RunInfo
    completed: int = 0
    steps: int = 0
    tokens: int = 0
    watch: Watch = field(init=False)
    sparkline: Sparkline = field(default_factory=Sparkline)
    _tallies: dict[tuple[str, int], Tally] = field(default_factory=dict)
    _ends: deque[float] = field(default_factory=lambda: deque(maxlen=_PACE_OVER + 1))

    def __post_init__(self) -> None:
        self.watch = Watch(self.info.algorithm, self.info.params)

    def rows(self, told: Told) -> Rows:
        """To be asked once for each thing told, in order."""
        match told:
            case GroupTold():
                rows = self._group(told)
            case ValuesTold(kind="train"):
                rows = self._update(told)
            case ValuesTold():
                rows = self._evaluation(told)
            case EventTold():
                rows = Rows(events=[event_row(told)])
            case RunTold():
                rows = Rows(run=dict(told.values))
            case EndTold():
                rows = self._end(told)
        rows.count = told.rows
        return rows

    def remember(self, update: int, values: Mapping[str, float | None]) -> None:
        """Take in an update of an earlier segment."""
        self.watch.add(update, values)
        self.sparkline.add(update, values.get(self._headline))

    def _group(self, told: GroupTold) -> Rows:
        tally = self._tallies.setdefault((told.kind, told.update), Tally())
        tally.add(told.record.trajectories)
        return Rows(groups=[group_row(told, self._max_text_chars)])

    def _update(self, told: ValuesTold) -> Rows:
        tally = self._tallies.pop(("train", told.update), Tally())
        self._tallies.clear()
        self.completed = told.update
        self.steps = int(number(told.values.get("optimizer/step", self.steps)) or self.steps)
        # Those of answers, or of the texts that SFT learns.
        self.tokens += tally.tokens + int(number(told.values.get("sft/tokens", 0)) or 0)
        self.watch.add(told.update, told.values)
        figure = told.values.get(self._headline)
        self.sparkline.add(told.update, figure)
        run = {
            "completed": self.completed,
            "steps": self.steps,
            "last_reward": None if figure is None else number(figure),
            "seconds_per_update": self._pace(told),
            "sparkline": self.sparkline.points(),
            "findings": self.findings(),
        }
        if any(f"audit/{measure}" in told.values for measure in MEASURES):
            run["audited"] = self._over_limit(told.values)
        return Rows(
            metrics=metric_rows(told.update, told.values),
            updates=[update_row(told, tally, self.steps, self.tokens)],
            events=tally.warning(told.at, told.update),
            run=run,
        )

    def _evaluation(self, told: ValuesTold) -> Rows:
        tally = self._tallies.pop(("evaluation", told.update), Tally())
        found = told.values.get("eval/mean_reward", told.values.get("eval/loss"))
        # Its timings have the names of the update's, which it would stand beside.
        own = {name: value for name, value in told.values.items() if name.startswith("eval/")}
        return Rows(
            metrics=metric_rows(told.update, own),
            updates=[update_row(told, tally, self.steps, self.tokens)],
            events=tally.warning(told.at, told.update),
            run={"last_evaluation": None if found is None else number(found)},
        )

    def _end(self, told: EndTold) -> Rows:
        outcome = told.outcome
        rows = Rows(
            run={
                **end_columns(outcome.status, text(outcome.message), told.at),
                "completed": max(self.completed, outcome.updates),
                "findings": self.findings(),
            },
            segment={"status": outcome.status, "ended_at": told.at},
        )
        for (kind, update), tally in self._tallies.items():
            rows.events += tally.warning(told.at, update)
            # Its answers explain what happened, so they have their place; none was trained on.
            if kind == "train":
                status: UpdateStatus = "skipped"
                end = ValuesTold(told.at, update, "train", status, {})
                self.tokens += tally.tokens
                rows.updates.append(update_row(end, tally, self.steps, self.tokens))
                rows.unfinished = update
        return rows

    @property
    def _headline(self) -> str:
        """What the list of runs draws."""
        return headline_of(self.info.algorithm).name

    @property
    def _max_text_chars(self) -> int:
        return int(lookup(self.info.params, "observe.max_text_chars") or 0)

    def findings(self) -> list[Any]:
        found: list[Any] = plain([asdict(finding) for finding in self.watch.findings()])
        return found

    def _pace(self, told: ValuesTold) -> float | None:
        """Seconds for an update, all that comes between two of them included."""
        self._ends.append(told.at)
        if len(self._ends) > 1:
            return (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)
        return number(told.values[_SECONDS]) if _SECONDS in told.values else None

    def _over_limit(self, values: Mapping[str, float]) -> list[str]:
        section = AuditSection()
        over: list[str] = []
        for measure in MEASURES:
            limit = lookup(self.info.params, f"audit.{measure}_limit")
            if limit is None:
                limit = getattr(section, f"{measure}_limit")
            if values.get(f"audit/{measure}", 0.0) > limit:
                over.append(measure)
        return over
