"""The checks of a run that is being prepared: started in a process of their own, within a time
limit, and read by the pages while they go on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from app.jobs.lock import locked
from app.jobs.processes import end_all, start
from app.jobs.queue import QueueError
from app.jobs.workspace import CHECK, CHECK_LOG
from app.store.alive import process_lives, started_at

LIMIT_SECONDS = 300.0
_PATIENCE_SECONDS = 5.0
State = Literal["none", "running", "done", "failed"]


@dataclass(frozen=True, slots=True)
class Finding:
    level: str
    title: str
    detail: str


@dataclass(frozen=True, slots=True)
class Checks:
    """``failed`` checks came to no end; ``message`` says why. ``seconds`` is how long they took, or
    take so far."""

    state: State = "none"
    findings: list[Finding] = field(default_factory=list)
    message: str = ""
    seconds: float = 0.0
    pid: int | None = None
    began: float | None = None

    @property
    def errors(self) -> int:
        return sum(f.level == "error" for f in self.findings)

    @property
    def warnings(self) -> int:
        return sum(f.level == "warning" for f in self.findings)

    def write(self, folder: Path, *, unless_there: bool = False) -> None:
        new = folder / f"{CHECK}.{os.getpid()}.new"
        new.write_text(json.dumps(asdict(self)), encoding="utf-8")
        if not unless_there:
            new.replace(folder / CHECK)
            return
        with contextlib.suppress(FileExistsError):  # quick checks have their result already
            (folder / CHECK).hardlink_to(new)
        new.unlink()


def start_checks(folder: Path, limit: float = LIMIT_SECONDS) -> None:
    """Begin anew: what was known of an earlier configuration is forgotten. The draft is locked, so
    that whoever clears up after earlier checks does not take these for them. Raises OSError."""
    stop_checks(folder)
    process = start(
        "app.jobs.checker", [str(folder), str(limit)], mark=mark_of(folder), log=folder / CHECK_LOG
    )
    began = started_at(process.pid)
    Checks("running", pid=process.pid, began=began).write(folder, unless_there=True)
    name = f"checks in {folder.name}"
    threading.Thread(target=_watch, args=(process, folder, limit), name=name, daemon=True).start()


def stop_checks(folder: Path) -> None:
    """End checks that are under way, and forget them."""
    before = _read(folder)
    (folder / CHECK).unlink(missing_ok=True)
    if before is not None and process_lives(before.pid, before.began):
        end_all(mark_of(folder))
    (folder / CHECK_LOG).unlink(missing_ok=True)


def read_checks(folder: Path) -> Checks:
    checks = _read(folder)
    if checks is None:
        return Checks()
    if checks.state != "running":
        return checks
    if process_lives(checks.pid, checks.began):
        seconds = time.time() - (checks.began or time.time())
        return Checks("running", seconds=max(0.0, seconds), pid=checks.pid, began=checks.began)
    # It may have written its last word between the two looks.
    again = _read(folder) or Checks()
    return again if again.state != "running" else Checks("failed", message=_last_words(folder))


def out_of_time(limit: float) -> str:
    return (
        f"The checks were ended after {limit:g} s. The reward program or the model may need longer "
        "than that; the run itself may still work."
    )


def mark_of(folder: Path) -> str:
    return f"checks in {folder}"


def _read(folder: Path) -> Checks | None:
    try:
        values = json.loads((folder / CHECK).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return Checks(**values | {"findings": [Finding(**f) for f in values["findings"]]})


def _watch(process: subprocess.Popen[bytes], folder: Path, limit: float) -> None:
    """Wait for the checks; they end themselves at their limit, and are ended if they do not."""
    try:
        process.wait(limit + _PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        now = _read(folder)
        # Others may have begun since.
        if now is not None and (now.state, now.pid) == ("running", process.pid):
            Checks("failed", message=out_of_time(limit), seconds=limit).write(folder)
        end_all(mark_of(folder))
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode != 0:
        with contextlib.suppress(QueueError), locked(folder):
            now = _read(folder)
            if now is None or now.pid == process.pid:  # and not those that have begun since
                end_all(mark_of(folder))  # a reward program that its killed parent could not end


def _last_words(folder: Path) -> str:
    try:
        words = (folder / CHECK_LOG).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        words = ""
    return f"The checks ended without a result. {words[-2000:]}".strip()
