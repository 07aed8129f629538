"""A run's rewards as a line of few points, whatever its length."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

POINTS = 60


@dataclass(slots=True)
class Sparkline:
    """Means over ``width`` updates each. Where they get too many, two become one, so the line
    always has all of the run."""

    width: int = 1
    _sums: list[float] = field(default_factory=list)
    _counts: list[int] = field(default_factory=list)

    def add(self, update: int, value: float | None) -> None:
        """``update`` counts from 1; a value that is missing leaves its place empty."""
        while update > POINTS * self.width:
            self._halve()
        place = (update - 1) // self.width
        missing = place + 1 - len(self._sums)
        self._sums += [0.0] * missing
        self._counts += [0] * missing
        if value is not None and math.isfinite(value):
            self._sums[place] += value
            self._counts[place] += 1

    def points(self) -> list[float | None]:
        """At most `POINTS`; None where there was no value."""
        pairs = zip(self._sums, self._counts, strict=True)
        return [float(f"{total / count:.6g}") if count else None for total, count in pairs]

    def _halve(self) -> None:
        self.width *= 2
        starts = range(0, len(self._sums), 2)
        self._sums = [sum(self._sums[i : i + 2]) for i in starts]
        self._counts = [sum(self._counts[i : i + 2]) for i in starts]
