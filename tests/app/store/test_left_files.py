from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from app.store.left_files import look
from app.store.queries.artifacts import Recorded


@pytest.fixture
def file(tmp_path) -> Path:
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "adapter.gguf"
    path.write_bytes(b"adapter")
    return path


def recorded(path: Path) -> Recorded:
    state = path.stat()
    return Recorded(1, "adapter", str(path), state.st_size, "0" * 64, state.st_mtime, None)


def test_a_file_that_is_as_it_was_is_there(file):
    assert look(recorded(file), None) == "there"
    assert look(recorded(file), file.parent) == "there"


def test_a_file_that_went_away_is_gone(file):
    known = recorded(file)
    file.unlink()
    assert look(known, None) == "gone"


def test_a_file_that_was_written_again_is_another_one(file):
    known = recorded(file)
    file.write_bytes(b"another")
    os.utime(file, (known.created_at - 5, known.created_at - 5))
    assert look(known, None) == "changed"
    file.write_bytes(b"longer than before")
    assert look(known, None) == "changed"


def test_the_records_of_a_run_at_work_grow(file):
    known = replace(recorded(file), kind="observe")
    file.write_bytes(b"longer than before")
    assert look(known, None, at_work=True) == "growing"
    assert look(known, None) == "changed"
    assert look(replace(known, kind="config"), None, at_work=True) == "changed"


@pytest.mark.parametrize("inside", [True, False])
def test_a_link_in_its_place_is_refused_wherever_it_leads(file, tmp_path, inside):
    known = recorded(file)
    file.rename(file.with_name("kept"))
    file.symlink_to(file.with_name("kept"))
    assert look(known, file.parent if inside else None) == "refused"


def test_a_folder_and_a_pipe_are_no_files(file):
    known = recorded(file)
    file.unlink()
    file.mkdir()
    assert look(known, None) == "refused"
    file.rmdir()
    os.mkfifo(file)
    assert look(known, None) == "refused"


def test_nothing_outside_of_its_folder_is_a_run_s_file(file, tmp_path):
    known = recorded(file)
    assert look(known, tmp_path / "other") == "refused"
    # Its folder swapped for a link: the path is the same, the place another.
    file.parent.rename(tmp_path / "elsewhere")
    file.parent.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "runs").mkdir()
    assert look(known, tmp_path / "runs") == "refused"


def test_a_time_ahead_of_the_clock_is_no_change(file):
    known = recorded(file)
    os.utime(file, (known.created_at + 1e6, known.created_at + 1e6))
    assert look(known, None) == "there"


def test_a_path_that_no_system_takes_is_gone():
    assert look(Recorded(1, "config", "/a\0b", 1, "", 0.0, None), None) == "gone"
