from __future__ import annotations

import pytest

from app.jobs.uploads import UploadError, safe_name


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("prompts.jsonl", "prompts.jsonl"),
        ("C:\\data\\prompts (2).jsonl", "prompts (2).jsonl"),
        ("../../etc/passwd", "passwd"),
        ("/home/me/größe.txt", "größe.txt"),
    ],
)
def test_only_the_base_name_counts(given, name):
    assert safe_name(given) == name


@pytest.mark.parametrize(
    "given",
    [
        "",
        "..",
        ".bashrc",
        "-rf",
        "a\nb",
        "a\0b",
        "a\u202eb",
        "x" * 200,
        "files.json",
        "worker.log",
        "folder/",
    ],
)
def test_names_that_cannot_be_files_here(given):
    with pytest.raises(UploadError):
        safe_name(given)
