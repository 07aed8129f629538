"""Where an update's time went."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Wall-clock seconds of an update, by stage; a stage entered twice adds up."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += time.perf_counter() - start

    def metrics(self) -> dict[str, float]:
        """``timing/<stage>_seconds`` of each stage, and of the update so far."""
        values = {f"timing/{stage}_seconds": spent for stage, spent in self.seconds.items()}
        return values | {"timing/update_seconds": time.perf_counter() - self._start}
