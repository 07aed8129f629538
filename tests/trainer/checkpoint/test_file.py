from __future__ import annotations

import io
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
import torch

from trainer.checkpoint.file import DamagedCheckpointError, read, write
from trainer.checkpoint.head import head

STATE = {
    "update": 5,
    "weights": {"q": torch.arange(6, dtype=torch.float32).reshape(2, 3), "none": None},
    "moments": [torch.tensor([0.1, 1e-30], dtype=torch.float64), torch.tensor(3)],
    "name": "sums",
    "rate": 0.1 + 0.2,
    "on": True,
}


def test_what_was_written_is_read_bit_for_bit(tmp_path):
    write(tmp_path / "a.ckpt", STATE)
    state = read(tmp_path / "a.ckpt")
    assert state.keys() == STATE.keys()
    assert torch.equal(state["weights"]["q"], STATE["weights"]["q"])
    assert state["weights"]["none"] is None
    assert [m.dtype for m in state["moments"]] == [torch.float64, torch.int64]
    assert torch.equal(state["moments"][0], STATE["moments"][0])
    assert [state[key] for key in ("update", "name", "rate", "on")] == [5, "sums", 0.1 + 0.2, True]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.ckpt"], "nothing lies beside it"


def test_the_file_before_is_replaced(tmp_path):
    for update in (1, 2):
        write(tmp_path / "a.ckpt", {"update": update})
    assert read(tmp_path / "a.ckpt") == {"update": 2}


# -- damage --------------------------------------------------------------------------------------


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "a.ckpt"
    write(path, STATE)
    return path


@pytest.mark.parametrize("share", [0.0, 0.005, 0.02, 0.5, 0.999])
def test_a_file_that_was_cut_short_is_refused_with_its_name(written, share):
    whole = written.read_bytes()
    written.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(DamagedCheckpointError, match=r"a\.ckpt: is (damaged|not a checkpoint)"):
        read(written)


def test_one_changed_bit_anywhere_is_seen(written):
    whole = written.read_bytes()
    for place in range(0, len(whole), 37):
        spoilt = bytearray(whole)
        spoilt[place] ^= 1
        written.write_bytes(spoilt)
        with pytest.raises(DamagedCheckpointError, match=r"a\.ckpt: is (damaged|not a checkpoint)"):
            read(written)


def test_another_kind_of_file_is_refused(tmp_path):
    (tmp_path / "a.ckpt").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(DamagedCheckpointError, match="is not a checkpoint of retrograd"):
        read(tmp_path / "a.ckpt")


def test_a_file_that_may_not_be_read_is_refused(tmp_path):
    with pytest.raises(DamagedCheckpointError, match=r"gone\.ckpt: cannot be read \(No such file"):
        read(tmp_path / "gone.ckpt")


class Bomb:
    """Unpickled, it writes a file."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return (os.system, (f"touch {self.target}",))


@pytest.mark.parametrize("wrap", [lambda bomb: bomb, lambda bomb: {"identity": bomb}])
def test_a_checkpoint_never_runs_code(tmp_path, written, wrap):
    """Sealed as a checkpoint is: its head, and torch's archive with a pickle in it."""
    buffer = io.BytesIO()
    torch.save(wrap(Bomb(tmp_path / "exploded")), buffer)
    body = buffer.getvalue()
    written.write_bytes(head("1" * 32, memoryview(body)) + body)
    with pytest.raises(DamagedCheckpointError, match=r"a\.ckpt: holds other things"):
        read(written)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("content", [b"", b"no archive at all", b"PK\x03\x04"])
def test_what_is_sealed_but_no_archive_is_refused(written, content):
    written.write_bytes(head("1" * 32, memoryview(content)) + content)
    with pytest.raises(DamagedCheckpointError, match=r"a\.ckpt: holds other things"):
        read(written)


def test_a_bare_tensor_is_no_checkpoint(tmp_path):
    write(tmp_path / "a.ckpt", torch.zeros(3))
    with pytest.raises(DamagedCheckpointError, match="holds other things"):
        read(tmp_path / "a.ckpt")


# -- a disk that is full, a process that is killed -----------------------------------------------


@contextmanager
def room_for(count):
    """No file of this process grows beyond so many bytes: not for longer than it takes, since the
    test run's own output may be such a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_the_file_before_and_no_rest(tmp_path):
    write(tmp_path / "a.ckpt", {"update": 1})
    with room_for(4096), pytest.raises(OSError, match="File too large"):
        write(tmp_path / "a.ckpt", {"update": 2, "weights": torch.zeros(10_000)})
    assert read(tmp_path / "a.ckpt") == {"update": 1}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.ckpt"]


WRITES_FOR_EVER = """
import sys, torch
from pathlib import Path
from trainer.checkpoint.file import write
for update in range(10**9):
    write(Path(sys.argv[1]), {"update": update, "weights": torch.full((300_000,), float(update))})
    if update == 0:
        print("ready", flush=True)
"""


@pytest.mark.full
def test_killed_at_any_moment_of_a_save_the_file_is_a_whole_one(tmp_path):
    """Fifty times. One save takes some milliseconds here, and the writer does nothing else."""
    path, unfinished = tmp_path / "a.ckpt", 0
    for attempt in range(50):
        command = [sys.executable, "-c", WRITES_FOR_EVER, str(path)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE)
        child.stdout.readline()
        time.sleep(0.0007 * attempt)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        state = read(path)
        assert state["weights"].eq(state["update"]).all()
        unfinished += (tmp_path / "a.ckpt.unfinished").exists()
    assert unfinished > 5, "the kills did meet saves"
