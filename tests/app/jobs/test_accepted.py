from __future__ import annotations

import pytest

from app.jobs.accepted import accept, refuse_what_was_not_accepted
from app.jobs.commands import Trust
from app.jobs.draft import Record
from trainer.errors import ConfigError

EVERYTHING = Trust(everything=True)
PYTHON = Trust(everything=False, allowed=(("python3",),))
TEXT = '[grpo]\nreward_command = ["python3", "score.py"]\n'


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run.toml").write_text(TEXT)
    (tmp_path / "words.txt").write_text("one")
    told = {"key": "grpo.reward_command", "written": "score.py", "word": 1, "state": "copied"}
    Record("run.toml", uploads=["words.txt"], files=[told]).write(tmp_path)
    return tmp_path


def test_what_was_accepted_is_run(folder):
    accept(folder, PYTHON)
    refuse_what_was_not_accepted(folder)
    refuse_what_was_not_accepted(folder, resumes=True)


def test_what_nobody_has_accepted_is_not(folder):
    with pytest.raises(ConfigError, match=r"run\.toml is not what was accepted for this run"):
        refuse_what_was_not_accepted(folder)


@pytest.mark.parametrize("name", ["run.toml", "words.txt"])
def test_a_file_that_has_changed(folder, name):
    accept(folder, EVERYTHING)
    (folder / name).write_text("[x]")
    with pytest.raises(ConfigError, match=f"{name} is not what was accepted"):
        refuse_what_was_not_accepted(folder)
    (folder / name).unlink()
    with pytest.raises(ConfigError, match=f"{name} is not what was accepted"):
        refuse_what_was_not_accepted(folder)


def test_a_file_that_has_come_since(folder):
    accept(folder, EVERYTHING)
    (folder / "more.txt").write_text("two")
    record = Record.read(folder)
    record.uploads.append("more.txt")
    record.write(folder)
    with pytest.raises(ConfigError, match=r"more\.txt"):
        refuse_what_was_not_accepted(folder)


def test_the_owner_mends_a_file_and_goes_on(folder):
    accept(folder, EVERYTHING)
    (folder / "words.txt").write_text("mended")
    refuse_what_was_not_accepted(folder, resumes=True)


def test_with_a_token_nothing_changes_when_a_run_goes_on(folder):
    accept(folder, PYTHON)
    (folder / "words.txt").write_text("other")
    with pytest.raises(ConfigError, match=r"words\.txt"):
        refuse_what_was_not_accepted(folder, resumes=True)


def test_the_rule_is_applied_again(folder):
    """Whatever the folder holds, a program runs only where the server of the start allows it."""
    accept(folder, Trust(everything=False, allowed=(("score",),)))
    with pytest.raises(ConfigError, match="the operator has not allowed"):
        refuse_what_was_not_accepted(folder)
