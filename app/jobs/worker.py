"""``python -m app.jobs.worker --run ID [--store URL] [--resume]``: makes one run of the store.

It takes the store from ``RETROGRAD_STORE`` where ``--store`` is not given: a URL may hold a
password, and what a command line says, everybody on the machine can read.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import closing, contextmanager

from app.interrupt import interrupts_that_last
from app.jobs import queue
from app.jobs.configs import config_of, resume_place
from app.store.alive import own_start
from app.store.database import VARIABLE, Store
from app.store.marks import marked_as
from app.store.models import Run
from app.store.monitor import StoreMonitor
from app.text import counted
from app.watched import Watched, train_watched
from trainer.errors import ConfigError, RetrogradError

_NOT_ITS_RUN = 3


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m app.jobs.worker")
    parser.add_argument("--run", type=int, required=True)
    parser.add_argument("--store")
    parser.add_argument("--resume", action="store_true")
    given = parser.parse_args(arguments)
    with closing(Store.open(given.store)) as store:
        # Reward programs inherit the environment, and have no business in the store.
        os.environ.pop(VARIABLE, None)
        if not queue.begins(store, given.run, os.getpid(), own_start()):
            print(f"Run {given.run} is not to be started by this process.", file=sys.stderr)
            return _NOT_ITS_RUN
        try:
            with interrupts_that_last():
                return make(store, given.run, resume=given.resume).exit_status
        except RetrogradError as error:
            print(error, file=sys.stderr)
            return error.exit_status
        except KeyboardInterrupt as error:
            return getattr(error, "exit_status", 130)
        except Exception:  # noqa: BLE001  the log is what is left of it
            traceback.print_exc()
            return 1


def make(store: Store, run_id: int, *, resume: bool, again: str = "") -> Watched:
    """Train the run ``run_id``, which is this process's, from its newest checkpoint with
    ``resume``; ``again`` is the command that goes on with it. Raises what ``trainer.run.run``
    raises; the store then knows why."""
    with _told(store, run_id), marked_as(store, run_id):
        with store.read() as session:
            run = session.get(Run, run_id)
            assert run is not None, "it was claimed a moment ago"
            config = config_of(run)
        place = resume_place(config, run) if resume else None
        if resume and place is None:
            if run.completed:  # to begin again would hide them
                raise ConfigError(
                    f"The checkpoint that run {run_id} was to go on from is not there any more, so "
                    f"what it has stays as it is ({counted(run.completed, 'update')}). Clone "
                    "config starts it again."
                )
            print("There is no checkpoint yet, so the run begins again.", file=sys.stderr)
        return train_watched(
            config,
            place,
            lambda note: StoreMonitor(store, run_id, note),
            again=again or f"retrograd runs resume {run_id}",
            run_id=run.uuid,
        )


@contextmanager
def _told(store: Store, run_id: int) -> Iterator[None]:
    """See that a run which ends with an error does not look alive. Where it had started, its
    monitor has said how it ended, and this changes nothing."""
    pid = os.getpid()
    try:
        yield
    except RetrogradError as error:
        queue.end(store, run_id, "failed", str(error), pid=pid)
        raise
    except KeyboardInterrupt:
        queue.end(store, run_id, "stopped", "Stopped before it began to train.", pid=pid)
        raise
    except Exception as error:
        words = f"retrograd failed in a way it does not know ({type(error).__name__}: {error})."
        queue.end(store, run_id, "failed", f"{words} The run's log shows where.", pid=pid)
        raise


if __name__ == "__main__":
    sys.exit(main())
