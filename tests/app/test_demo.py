from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE

import httpx
import psutil
import pytest

from app.demo import Demo, next_steps, prepare, with_seed
from app.resources import bundled
from app.terminal.summary import shown_path
from trainer.errors import ConfigError


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


@pytest.fixture
def at_home(tmp_path):
    """The environment of somebody who has used retrograd never before."""
    return {"PATH": os.defpath, "HOME": str(tmp_path)}


def shorten(demo: Demo, updates: int) -> None:
    text, count = re.subn(r"(?m)^updates = \d+$", f"updates = {updates}", demo.config.read_text())
    assert count == 1
    demo.config.write_text(text)


def test_from_any_folder_it_trains_serves_on_and_says_what_to_try_next(
    retrograd_path, tmp_path, at_home
):
    demo = prepare(tmp_path / "retrograd-demo")
    shorten(demo, 2)
    command = [str(retrograd_path), "demo", "--port", "0"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=at_home, stdout=PIPE, stderr=PIPE, text=True
    ) as running:
        words, url = running.stdout.readline().rsplit(maxsplit=1)
        told = []
        while not told or "until you press Ctrl-C" not in told[-1]:
            told.append(running.stderr.readline())
            assert told[-1], told
        with httpx.Client() as client:
            run = client.get(f"{url}.json").json()["run"]
            page = client.get(url).text
        running.send_signal(signal.SIGINT)
        said, _ = running.communicate(timeout=20)
    assert running.returncode == 0
    assert words == "Watch it learn:"
    assert (run["status"], run["completed"]) == ("completed", 2)
    assert "smoke_tiny_grpo" in page
    assert "retrograd-demo/smoke_tiny_grpo.toml was changed, and is used as it is" in "".join(told)
    assert any(line.startswith("completed, update 2 of 2") for line in told)
    assert "adapter: retrograd-demo/adapter.gguf" in said
    assert "/retrograd train retrograd-demo/smoke_tiny_grpo.toml" in said, "not on PATH"
    assert demo.adapter.read_bytes()[:4] == b"GGUF"
    assert {path.name for path in tmp_path.iterdir()} == {"retrograd-demo", ".local"}


@pytest.mark.full
def test_ctrl_c_stops_its_run_and_leaves_no_process(retrograd_path, tmp_path, at_home):
    shorten(prepare(tmp_path / "retrograd-demo"), 2000)
    command = [str(retrograd_path), "demo", "--port", "0"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=at_home, stdout=PIPE, stderr=PIPE, text=True
    ) as demo:
        while "running, update" not in (line := demo.stderr.readline()):
            assert line, "it ended"
        demo.send_signal(signal.SIGINT)
        assert demo.wait(60) == 130
    deadline = time.monotonic() + 20
    while _workers(tmp_path):  # one that has said how it ended still puts things away
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _workers(home: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            its = process.environ().get("HOME") == str(home)
            if its and "app.jobs.worker" in " ".join(process.cmdline()):
                found.append(process)
    return found


def test_what_the_user_made_wrong_is_named_and_not_queued(retrograd, tmp_path, at_home):
    demo = prepare(tmp_path / "retrograd-demo")
    demo.config.write_text(demo.config.read_text().replace("rank = 8", "rank = 0"))
    done = retrograd("demo", "--once", "--port", "0", cwd=tmp_path, env=at_home)
    assert done.returncode == 2
    assert "retrograd-demo/smoke_tiny_grpo.toml:14: lora.rank = 0 must be" in done.stderr


def test_another_seed_takes_the_place_of_the_one_in_the_file(tmp_path):
    text = prepare(tmp_path).config.read_text()
    assert "\nseed = 7\n" in with_seed(text, 7)
    with pytest.raises(ConfigError, match=r"the line that sets the seed, and .* has 0"):
        with_seed("[run]", 7)


def test_commands_to_try_can_be_copied_into_a_shell(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    demo = prepare(Path("my first; $run"))
    commands = [
        shlex.split(line)
        for line in map(str.strip, next_steps(demo, "http://x/runs/1", None).splitlines())
        if line.startswith("retrograd ")
    ]
    config = "my first; $run/smoke_tiny_grpo.toml"
    train = ["retrograd", "train", config, "--output", "my first; $run/adapter.gguf"]
    assert commands == [["retrograd", "reward", "test", config], train]
    uses = shlex.split(next_steps(demo, "http://x/runs/1", demo.adapter))
    adapter = ["--adapter", "my first; $run/adapter.gguf"]
    for at, words in (
        (uses.index("chat"), ["chat", "my first; $run/tiny/tiny.gguf", *adapter, "--compare"]),
        (uses.index("bench"), ["bench", config, *adapter]),
    ):
        assert uses[at : at + len(words)] == words


@pytest.mark.full
def test_the_demo_as_it_comes_raises_the_reward(retrograd, tmp_path):
    store = tmp_path / "data" / "store.db"
    done = retrograd("demo", "--once", "--port", "0", "--store", store, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = (store.parent / "runs" / "1" / "output" / "observe.jsonl").read_text().splitlines()
    updates = [record for record in map(json.loads, lines) if record["type"] == "update"]
    rewards = [update["metrics"]["reward/mean"] for update in updates]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.1
