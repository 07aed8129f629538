"""A run's folder of checkpoints: which is written when, which is taken, which is let go."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from trainer.checkpoint.file import UNFINISHED, DamagedCheckpointError, State, read, write
from trainer.errors import ConfigError

ENDING = ".ckpt"
BEST = "best"
EARLIER = "earlier"
"""With the time after it, the folder in which the checkpoints of a run before are put aside."""
_SECONDS_BETWEEN = 60.0


@dataclass(slots=True)
class Store:
    """Keeps the ``keep`` newest checkpoints of ``folder``.

    With ``every_steps`` one is due after so many optimizer steps, otherwise after a minute.
    ``clock`` gives seconds.
    """

    folder: Path
    keep: int
    every_steps: int | None
    clock: Callable[[], float] = time.monotonic
    _last_step: int = 0
    _new: bool = True
    _last_time: float = field(init=False)

    def __post_init__(self) -> None:
        self._last_time = self.clock()

    def start_at(self, step: int) -> None:
        """The run continues from ``step``, which is saved already."""
        self._last_step, self._last_time = step, self.clock()
        self._new = False

    def is_due(self, step: int) -> bool:
        if self.every_steps is not None:
            return step - self._last_step >= self.every_steps
        return self.clock() - self._last_time >= _SECONDS_BETWEEN

    def save(self, update: int, step: int, state: State) -> Path:
        """Write the checkpoint of ``update``, then let go the oldest ones and what a kill left
        unfinished. Raises OSError."""
        self._prepare()
        path = self.folder / f"update-{update:06d}{ENDING}"
        write(path, state)
        self._last_step, self._last_time = step, self.clock()
        others = [p for p in _by_age(self.folder) if p.stem != BEST and p != path]
        for old in [*others[self.keep - 1 :], *self.folder.glob(f"*{ENDING}{UNFINISHED}")]:
            old.unlink(missing_ok=True)
        return path

    def save_best(self, state: State) -> Path:
        """Write the best checkpoint in place of the one before. Raises OSError."""
        self._prepare()
        path = self.folder / f"{BEST}{ENDING}"
        write(path, state)
        return path

    def _prepare(self) -> None:
        """Make the folder. What an earlier run left in it is not this one's to let go, or to go on
        from: a run that begins anew puts it aside."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._new and (found := _by_age(self.folder)):
            aside = self.folder / time.strftime(f"{EARLIER}-%Y%m%d-%H%M%S")
            aside.mkdir(exist_ok=True)
            for path in found:
                path.replace(aside / path.name)
        self._new = False


def find(place: Path, on_damaged: Callable[[str], None]) -> tuple[Path, State]:
    """The checkpoint at ``place``: the file itself, or the newest whole one of a folder.

    ``on_damaged`` hears of each that is passed over. Raises ConfigError when there is none.
    """
    if place.is_file():
        return place, read(place)
    if not place.is_dir():
        raise ConfigError(
            f"{place}: there is no such checkpoint, and no folder of checkpoints. Give one that "
            "is there; to begin from the start, leave out --resume."
        )
    for path in _by_age(place):
        try:
            return path, read(path)
        except DamagedCheckpointError as error:
            on_damaged(f"{error}; the one before it is taken.")
    raise ConfigError(
        f"{place}: holds no whole checkpoint, so the run cannot go on from there. To begin from "
        "the start, leave out --resume."
    )


def _by_age(folder: Path) -> list[Path]:
    """The checkpoints of a folder, newest first."""
    found = folder.glob(f"*{ENDING}")
    return sorted(found, key=lambda p: (p.stat().st_mtime_ns, p.name), reverse=True)
