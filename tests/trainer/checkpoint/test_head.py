from __future__ import annotations

import hashlib
import os

import pytest

from trainer.checkpoint.file import read, write
from trainer.checkpoint.head import UNNAMED, by_age, head, run_of, split

ONE, OTHER = "1" * 32, "2" * 32


def before_ids(content: bytes) -> bytes:
    """The same checkpoint as it was written before checkpoints had the id of their run."""
    _, body = split(memoryview(content))
    return b"retrograd-checkpoint/1\n" + hashlib.sha256(body).digest() + body


def test_a_file_knows_whose_it_is_without_being_read(tmp_path):
    path = tmp_path / "update-000001.ckpt"
    write(path, {"update": 1}, ONE)
    assert run_of(path) == ONE
    path.write_bytes(path.read_bytes()[:70])
    assert run_of(path) == ONE


def test_a_file_of_before_has_no_id_and_is_read_as_ever(tmp_path):
    path = tmp_path / "update-000001.ckpt"
    write(path, {"update": 1}, ONE)
    path.write_bytes(before_ids(path.read_bytes()))
    assert run_of(path) == UNNAMED
    assert read(path) == {"update": 1}


@pytest.mark.parametrize("content", [b"", b"GGUF", b"retrograd-checkpoint/2\n" + b"1" * 9])
def test_what_is_none_is_nobodys(tmp_path, content):
    (tmp_path / "a.ckpt").write_bytes(content)
    assert run_of(tmp_path / "a.ckpt") is None
    assert run_of(tmp_path / "gone.ckpt") is None


def test_an_id_that_was_changed_is_damage():
    content = head(ONE, memoryview(b"body")) + b"body"
    assert split(memoryview(content)) == (ONE, b"body")
    with pytest.raises(ValueError, match="damaged"):
        split(memoryview(content.replace(ONE.encode(), OTHER.encode())))


def test_of_a_folder_the_ones_of_a_run_newest_first(tmp_path):
    for number, run in enumerate((ONE, OTHER, ONE, UNNAMED), 1):
        path = tmp_path / f"update-{number:06d}.ckpt"
        write(path, {}, run)
        os.utime(path, (number, number))
    (tmp_path / "best.ckpt").write_bytes(b"broken")
    os.utime(tmp_path / "best.ckpt", (9, 9))

    def found(run):
        return [path.stem[-1] for path in by_age(tmp_path, run)]

    assert found(None) == ["t", "4", "3", "2", "1"]
    assert found(ONE) == ["t", "3", "1"], "one that cannot be read is told of as damaged later"
    assert found(UNNAMED) == ["t", "4"]
    assert by_age(tmp_path / "gone") == []
