from __future__ import annotations

import subprocess
import sys
from contextlib import closing

from app.jobs.processes import marked_as, runs_with_processes
from app.store.database import Store


def test_stores_of_the_same_relative_name_have_processes_of_their_own(tmp_path, monkeypatch):
    """What a server ends of its own runs, it must not end of another one's."""
    stores = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        stores.append(Store.open("sqlite:///runs.db"))
    first, second = stores
    with closing(first), closing(second), marked_as(first, 3):
        code = "import sys; print(flush=True); sys.stdin.read()"
        command = [sys.executable, "-c", code]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            assert runs_with_processes(first) == {3}
            assert runs_with_processes(second) == set()
            with closing(Store.open(str(tmp_path / "a" / "runs.db"))) as again:
                assert runs_with_processes(again) == {3}
            process.kill()
