from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from app.demo import next_steps, prepare
from app.resources import bundled
from app.terminal.summary import shown_path


def test_the_example_is_copied_and_a_second_time_left_alone(tmp_path):
    demo = prepare(tmp_path / "demo")
    names = {str(path.relative_to(demo.folder)) for path in demo.folder.rglob("*.*")}
    assert {"smoke_tiny_grpo.toml", "smoke_rl_reward.py", "tiny/prompts.jsonl"} <= names
    assert demo.config.read_bytes() == (bundled("examples") / demo.config.name).read_bytes()
    assert prepare(tmp_path / "demo").remarks == demo.remarks


def test_what_the_user_changed_is_kept_and_said(tmp_path):
    demo = prepare(tmp_path)
    reward = tmp_path / "smoke_rl_reward.py"
    reward.write_text("# mine")
    new = set(prepare(tmp_path).remarks) - set(demo.remarks)
    assert reward.read_text() == "# mine"
    (remark,) = new
    assert remark.startswith(f"{shown_path(reward)} was changed, and is used as it is")


def test_a_folder_that_cannot_be_written_is_named(retrograd, tmp_path):
    (tmp_path / "file").write_text("")
    done = retrograd("demo", "--to", tmp_path / "file" / "below")
    assert done.returncode == 1
    assert "The example could not be copied into" in done.stderr
    assert "--to" in done.stderr


def test_from_any_folder_it_trains_and_says_what_to_try_next(retrograd, tmp_path):
    demo = prepare(tmp_path / "retrograd-demo")
    short, count = re.subn(r"(?m)^updates = \d+$", "updates = 2", demo.config.read_text())
    assert count == 1
    demo.config.write_text(short)

    done = retrograd("demo", cwd=tmp_path, env={"PATH": os.defpath, "HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert "retrograd-demo/smoke_tiny_grpo.toml was changed, and is used as it is" in done.stderr
    assert "adapter: retrograd-demo/adapter.gguf" in done.stderr
    assert "/retrograd train retrograd-demo/smoke_tiny_grpo.toml" in done.stdout, "not on PATH"
    assert demo.adapter.read_bytes()[:4] == b"GGUF"
    assert {path.name for path in tmp_path.iterdir()} == {"retrograd-demo"}


def test_commands_to_try_can_be_copied_into_a_shell(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    demo = prepare(Path("my first; $run"))
    commands = [
        shlex.split(line)
        for line in map(str.strip, next_steps(demo).splitlines())
        if line.startswith("retrograd ")
    ]
    config = "my first; $run/smoke_tiny_grpo.toml"
    assert commands == [["retrograd", "reward", "test", config], ["retrograd", "train", config]]


@pytest.mark.full
def test_the_demo_as_it_comes_raises_the_reward(retrograd, tmp_path):
    done = retrograd("demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "retrograd-demo/observe.jsonl").read_text().splitlines()
    updates = [record for record in map(json.loads, lines) if record["type"] == "update"]
    rewards = [update["metrics"]["reward/mean"] for update in updates]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.1
