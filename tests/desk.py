"""What a test of the browser's runs needs: a workspace, a store, and the queue over it."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import psutil

from app.jobs import queue
from app.jobs.runs import Jobs
from app.jobs.supervisor import Supervisor
from app.jobs.uploads import Upload
from app.resources import bundled
from app.server.settings import ServerSettings
from app.store.database import Store
from app.store.models import Run
from app.store.status import OPEN

SLOW = """\
import json, os, sys, time
# Its pid, for a test that wants to know what becomes of it.
open({pids!r}, "a").write(f"{{os.getpid()}}\\n")
for line in sys.stdin:
    message = json.loads(line)
    if "completion" in message:
        echo = {{k: message[k] for k in ("_retrograd_batch", "_retrograd_index")}}
        message = {{"reward": len(message["completion"]) % 5 / 4}} | echo
    elif "_retrograd_batch_end" in message:
        time.sleep({pause})
    print(json.dumps(message), flush=True)
"""


def prepare_workspace(folder: Path, *, pause: float = 0.1) -> Path:
    """The bundled example in ``folder``, with a reward program that takes its time beside it."""
    source = bundled("examples")
    (folder / "tiny").mkdir(parents=True)
    for name in ("tiny/tiny.gguf", "tiny/prompts.jsonl", "smoke_rl_reward.py"):
        shutil.copyfile(source / name, folder / name)
    program = SLOW.format(pids=str(folder / "pids.txt"), pause=pause)
    (folder / "slow.py").write_text(program)
    return folder


def config_text(updates: int = 3, **changes: str) -> str:
    """The example's configuration; ``changes`` replace the values of keys, as TOML."""
    text = (bundled("examples") / "smoke_tiny_grpo.toml").read_text(encoding="utf-8")
    values = {"updates": str(updates), "ctx": "64\nthreads = 1", **changes}
    for key, value in values.items():
        text, count = re.subn(rf"(?m)^{key} = .*$", lambda _, k=key, v=value: f"{k} = {v}", text)
        assert count == 1, key
    return text


def slow_text(updates: int = 400) -> str:
    """A run that lasts, and saves a checkpoint after every other update."""
    text = config_text(updates, reward_command='["python3", "slow.py"]')
    return text + "\n[checkpoint]\nevery_steps = 8\n"


def gone(pid: int) -> bool:
    """Whether a process has ended; its parent may not have asked for it yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def upload(name: str, content: str) -> Upload:
    return Upload(name, BytesIO(content.encode()))


@dataclass
class Desk:
    workspace: Path
    jobs: Jobs
    supervisor: Supervisor

    @classmethod
    def open(
        cls, folder: Path, workspace: Path, *, url: str | None = None, **settings: object
    ) -> Desk:
        store = Store.open(url or str(folder / "retrograd.db"))
        given = ServerSettings(workspace=workspace, **settings)  # type: ignore[arg-type]
        jobs = Jobs(store, given)
        return cls(workspace, jobs, Supervisor(jobs))

    def close(self) -> None:
        """End whatever still runs."""
        for run in self.all():
            if run.status in OPEN:
                queue.ask(self.jobs.store, run.id, "stop")
                queue.ask(self.jobs.store, run.id, "stop") if run.status != "queued" else None
        self.supervisor.stop_grace = 0.0
        self.wait(lambda: all(run.status not in OPEN for run in self.all()), 60)
        self.supervisor.stop()
        for process in self.supervisor._children.values():
            process.wait(30)  # it has said that the run is over, and puts things away
        self.jobs.store.close()

    def all(self) -> list[Run]:
        with self.jobs.store.read() as session:
            return session.query(Run).filter(Run.status != "draft").all()

    def run(self, run_id: int) -> Run:
        with self.jobs.store.read() as session:
            found = session.get(Run, run_id)
        assert found is not None
        return found

    def enter(self, text: str, *uploads: Upload) -> int:
        """A run in the queue."""
        run_id = self.jobs.create(text, uploads)
        self.jobs.start(run_id)
        return run_id

    def wait(self, condition: Callable[[], object], seconds: float = 60) -> None:
        """Do what a server does until ``condition`` holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, [(r.status, r.message) for r in self.all()]
            self.supervisor.turn()
            time.sleep(0.05)

    def wait_until(self, run_id: int, *statuses: str) -> Run:
        self.wait(lambda: self.run(run_id).status in statuses)
        return self.run(run_id)

    def wait_for_updates(self, run_id: int, count: int) -> None:
        self.wait(lambda: self.run(run_id).completed >= count)

    def programs(self) -> list[int]:
        """The pids of the slow reward programs so far."""
        return [int(line) for line in (self.workspace / "pids.txt").read_text().split()]
