"""``python -m app.jobs.checker FOLDER SECONDS``: checks the run in a folder, and says so there."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType

from app.interrupt import Signalled, ended_by_signals, interrupts_that_last
from app.jobs.accepted import refuse_what_was_not_accepted
from app.jobs.checks import Checks, Finding, State, out_of_time
from app.jobs.draft import placed_config
from app.store.alive import started_at
from trainer.errors import RetrogradError


class _OutOfTime(BaseException):
    """Raised when the limit is reached. No `except Exception` on the way takes it for its own."""


def main(folder: Path, limit: float) -> None:
    def ring(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise _OutOfTime

    began = time.time()
    findings: list[Finding] = []
    state: State = "done"
    message = ""
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit, 1.0)  # again, if native code swallowed the first
    try:
        with interrupts_that_last(), ended_by_signals():
            findings = _check(folder)
    except RetrogradError as error:
        findings = [Finding("error", "configuration", str(error))]
    except _OutOfTime:
        state = "failed"
        message = out_of_time(limit)
    except Signalled:
        sys.exit(1)
    except Exception as error:  # noqa: BLE001  a fault of ours; people read where it is
        traceback.print_exc()
        state, message = "failed", f"The checks failed ({type(error).__name__}: {error})."
    signal.setitimer(signal.ITIMER_REAL, 0)
    seconds, pid = time.time() - began, os.getpid()
    Checks(state, findings, message, seconds, pid, started_at(pid)).write(folder)


def _check(folder: Path) -> list[Finding]:
    refuse_what_was_not_accepted(folder)
    config = placed_config(folder)
    config.output.path.parent.mkdir(parents=True, exist_ok=True)

    from trainer.check import check  # loads torch

    prefix = f"{folder}/"
    return [Finding(f.level, f.title, f.detail.replace(prefix, "")) for f in check(config).findings]


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
