"""The benchmark of the dashboard works. What it measures is not for a test: other programs run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.full
def test_the_benchmark_runs_and_asks_for_every_page(root, tmp_path):
    command = [sys.executable, "benchmarks/dashboard.py", "--quick"]
    done = subprocess.run(
        command,
        cwd=root,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "answered" not in done.stdout  # a page that is not there any more
    for row in ("/trajectories?q=", "rows taken by the store", "its hint", "tiny model"):
        assert row in done.stdout
    assert list(tmp_path.rglob("*.db")) == []
