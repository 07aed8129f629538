"""Whether a file is still the one that a run left."""

from __future__ import annotations

import stat
import time
from pathlib import Path
from typing import Literal

from app.store.queries.artifacts import Recorded

FileState = Literal["there", "gone", "changed", "growing", "refused"]
STATES: dict[FileState, str] = {
    "there": "",
    "gone": "is not there any more",
    "changed": "was written again after it was recorded, and is another file now",
    "growing": "is still growing: the run writes to it. What it holds so far is in records.jsonl",
    "refused": "is no plain file of this run's folder, and is not served",
}
_GROWS = "observe"
_CLOCK_SECONDS = 1e-3


def look(recorded: Recorded, inside: Path | None, at_work: bool = False) -> FileState:
    """``at_work`` says whether the run goes on. ``inside`` is the folder that the file has to lie
    in, once all links are followed. A link in its own place is refused wherever it leads: a run
    records files."""
    path = Path(recorded.path)
    try:
        state = path.lstat()
        if not stat.S_ISREG(state.st_mode):
            return "refused"
        if inside is not None and not path.resolve().is_relative_to(inside.resolve()):
            return "refused"
    except (OSError, ValueError):
        return "gone"
    ahead = state.st_mtime > time.time()  # such a time is not recorded as it is
    same_time = ahead or abs(state.st_mtime - recorded.created_at) < _CLOCK_SECONDS
    if state.st_size == recorded.size and same_time:
        return "there"
    return "growing" if at_work and recorded.kind == _GROWS else "changed"
