from __future__ import annotations

import os
import shutil
import stat

import pytest

from trainer.gguf.partial import written_whole


def test_the_file_takes_its_place_when_it_is_written(tmp_path):
    target = tmp_path / "adapter.gguf"
    target.write_text("old")
    with written_whole(target) as partial:
        partial.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_a_failure_leaves_what_was_there_and_nothing_else(tmp_path):
    target = tmp_path / "adapter.gguf"
    target.write_text("old")
    with pytest.raises(FileNotFoundError), written_whole(target) as partial:
        shutil.copy(partial, tmp_path / "nothing was written")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_what_killed_runs_left_is_removed_and_a_young_file_stays(tmp_path):
    target = tmp_path / "run[1].gguf"
    names = ("run[1].gguf.aa", "run[1].gguf.bb", "run1.gguf.aa")
    old, young, other = (tmp_path / f".{name}.partial" for name in names)
    for path in (old, young, other):
        path.write_bytes(b"half")
    for path in (old, other):
        os.utime(path, (0, 0))
    with written_whole(target) as partial:
        partial.write_bytes(b"whole")
    assert [path.exists() for path in (old, young, other)] == [False, True, True]


def test_the_file_has_the_rights_of_any_new_file(tmp_path):
    target, plain = tmp_path / "adapter.gguf", tmp_path / "plain"
    plain.touch()
    with written_whole(target) as partial:
        partial.write_bytes(b"whole")
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
