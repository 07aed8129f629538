from __future__ import annotations

from pathlib import Path

import pytest

from app.cli.secret import secret_in
from trainer.errors import ConfigError


def test_a_secret_is_the_one_line_of_its_file(tmp_path):
    (tmp_path / "key").write_text("  abc-123\n")
    assert secret_in(tmp_path / "key", "key") == "abc-123"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "must hold the key, alone and on one line"),
        (b"one\ntwo\n", "must hold the key, alone and on one line"),
        (b"x" * 5000, "must hold the key, alone and on one line"),
        (b"\xff\xfe", "it is not text"),
        ("äkey".encode(), "take letters, digits and signs of ASCII"),
        (b"a\x00b", "take letters, digits and signs of ASCII"),
    ],
)
def test_what_is_no_secret_is_refused(tmp_path, content, words):
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        secret_in(tmp_path / "key", "key")


def test_a_file_without_an_end_is_not_read_to_it():
    with pytest.raises(ConfigError, match="alone and on one line"):
        secret_in(Path("/dev/zero"), "key")
