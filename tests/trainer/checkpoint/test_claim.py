"""One run at a time has a folder of checkpoints."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trainer.checkpoint.claim import claimed
from trainer.errors import ConfigError

HOLD = """
import sys
from pathlib import Path
from trainer.checkpoint.claim import claimed
with claimed(Path(sys.argv[1])):
    print("mine", flush=True)
    sys.stdin.read()
"""


def test_a_folder_that_another_process_has_is_refused_until_that_is_killed(tmp_path):
    folder = tmp_path / "adapter.checkpoints"
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"mine\n"
        with pytest.raises(ConfigError, match="another run is writing its checkpoints there"):
            claimed(folder).__enter__()
        other.kill()
    with claimed(folder):
        pass
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_can_be_written_nothing_is_promised(tmp_path):
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with claimed(tmp_path / "file" / "checkpoints"):
        pass
