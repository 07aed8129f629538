"""A run's folder of checkpoints: which is written when, which is taken, which is let go."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from trainer.checkpoint.file import UNFINISHED, DamagedCheckpointError, State, read, write
from trainer.checkpoint.head import ENDING, UNNAMED, by_age, run_of
from trainer.errors import ConfigError

BEST = "best"
EARLIER = "earlier"
"""With the time after it, the folder in which the checkpoints of a run before are put aside."""
_SECONDS_BETWEEN = 60.0


@dataclass(slots=True)
class Store:
    """Keeps the ``keep`` newest checkpoints of ``run`` in ``folder``.

    With ``every_steps`` one is due after so many optimizer steps, otherwise after a minute.
    ``clock`` gives seconds.
    """

    folder: Path
    keep: int
    every_steps: int | None
    run: str
    clock: Callable[[], float] = time.monotonic
    _last_step: int = 0
    _cleared: bool = False
    _own: frozenset[str | None] = frozenset()
    """Whose files in the folder are this run's. One that begins anew has none there yet."""
    _last_time: float = field(init=False)

    def __post_init__(self) -> None:
        self._last_time = self.clock()

    def start_at(self, step: int) -> None:
        """The run continues from ``step``, which is saved already."""
        self._last_step, self._last_time = step, self.clock()
        # What is damaged, or older than ids are, is taken for its own as well.
        self._own = frozenset((self.run, UNNAMED, None))

    def is_due(self, step: int) -> bool:
        if self.every_steps is not None:
            return step - self._last_step >= self.every_steps
        return self.clock() - self._last_time >= _SECONDS_BETWEEN

    def save(self, update: int, step: int, state: State) -> Path:
        """Write the checkpoint of ``update``, then let go the oldest ones and what a kill left
        unfinished. Raises OSError."""
        self._prepare()
        path = self.folder / f"update-{update:06d}{ENDING}"
        write(path, state, self.run)
        self._last_step, self._last_time = step, self.clock()
        others = [p for p in by_age(self.folder) if p.stem != BEST and p != path]
        for old in [*others[self.keep - 1 :], *self.folder.glob(f"*{ENDING}{UNFINISHED}")]:
            old.unlink(missing_ok=True)
        return path

    def save_best(self, state: State) -> Path:
        """Write the best checkpoint in place of the one before. Raises OSError."""
        self._prepare()
        path = self.folder / f"{BEST}{ENDING}"
        write(path, state, self.run)
        return path

    def _prepare(self) -> None:
        """Make the folder. What another run left in it is not this one's to let go, or to go on
        from: it is put aside."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._cleared:
            return
        if others := [path for path in by_age(self.folder) if run_of(path) not in self._own]:
            aside = self.folder / time.strftime(f"{EARLIER}-%Y%m%d-%H%M%S")
            aside.mkdir(exist_ok=True)
            for path in others:
                path.replace(aside / path.name)
        self._cleared = True


def find(
    place: Path, on_remark: Callable[[str], None], run: str | None = None
) -> tuple[Path, State]:
    """The checkpoint at ``place``: the file itself, or the newest whole one of a folder, of ``run``
    where that is told.

    ``on_remark`` hears of each that is passed over. Raises ConfigError when there is none.
    """
    if place.is_file():
        return place, read(place)
    if not place.is_dir():
        raise ConfigError(
            f"{place}: there is no such checkpoint, and no folder of checkpoints. Give one that "
            "is there; to begin from the start, leave out --resume."
        )
    own = by_age(place, run)
    if others := len(by_age(place)) - len(own):
        on_remark(f"{place}: passed over {_counted(others)} of another run.")
    damaged: list[str] = []
    for path in own:
        try:
            found = read(path)
        except DamagedCheckpointError as error:
            damaged.append(str(error))
            continue
        for why in damaged:
            on_remark(f"{why}; the one before it is taken.")
        return path, found
    of_run = f" of this run, but {_counted(others)} of another one" if others else ""
    raise ConfigError(
        f"{place}: holds no whole checkpoint{of_run}, so the run cannot go on from there. "
        f"{''.join(f'{why}. ' for why in damaged)}{_further(place)}To begin from the start, leave "
        f"out --resume."
    )


def _counted(number: int) -> str:
    return f"{number} checkpoint{'s' * (number != 1)}"


def _further(place: Path) -> str:
    """Where checkpoints of runs before this one lie, for whoever looks for one of them."""
    aside = sorted(place.glob(f"{EARLIER}-*"), reverse=True)
    if not aside:
        return ""
    return f"Those of a run before it are in {aside[0]}: --resume takes that folder as well. "
