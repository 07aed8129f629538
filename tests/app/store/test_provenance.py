from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from app.store.provenance import command, provenance


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["retrograd", "train", "run.toml"], "retrograd train run.toml"),
        (["retrograd", "--name", "two words", ""], "retrograd --name 'two words' ''"),
        (["x", "--api-key", "abc", "run.toml"], "x --api-key *** run.toml"),
        (["x", "--token=abc", "--seed", "3"], "x --token=*** --seed 3"),
        (["x", "--password", "--seed", "3"], "x --password --seed 3"),
        (["x", "--tokenizer", "a.json"], "x --tokenizer a.json"),
        (
            ["x", "--store", "postgresql://me:secret@host/db"],
            "x --store postgresql://me:***@host/db",
        ),
        (["x", "--store=postgresql://:secret@host/db"], "x --store=postgresql://:***@host/db"),
        (
            ["x", "--store=postgresql://h/db?user=me&password=hunter2&port=1"],
            "x --store=postgresql://h/db?user=me&password=***&port=1",
        ),
        (["x", "sk-abcdefghijklmnop1234", "hf_abcdefghijklmnop"], "x *** ***"),
        (["x", "--model", "models/sk-small.gguf"], "x --model models/sk-small.gguf"),
    ],
)
def test_a_command_is_shown_without_its_secrets(argv, shown):
    assert command(argv) == shown


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True)


def test_versions_are_told_and_outside_of_git_no_commit(tmp_path):
    told = provenance(tmp_path, ["retrograd"])
    assert told.keys() == {
        "retrograd",
        "torch",
        "llama-cpp-python",
        "python",
        "system",
        "command",
    }


def test_the_commit_of_the_configuration_is_told_and_whether_it_was_changed(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "run.toml").write_text("a")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    (tmp_path / "output.gguf").write_text("not of the repository")
    commit = provenance(tmp_path)["git commit"]
    assert len(commit) == 40
    (tmp_path / "run.toml").write_text("b")
    assert provenance(tmp_path)["git commit"] == f"{commit} and changes to it"
