from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# Scores by the letters in an answer, so that the answers of a random model differ. Says who it is.
REWARD = """\
import json, os, sys
open("reward.pid", "w").write(str(os.getpid()))
for line in sys.stdin:
    message = json.loads(line)
    if "completion" in message:
        text = message.pop("completion")
        keep = {key: message[key] for key in ("_retrograd_batch", "_retrograd_index")}
        message = {"reward": sum(map(ord, text)) % 7 / 7, **keep}
    print(json.dumps(message), flush=True)
"""


@pytest.fixture
def run(project, config_text, random_llama, tmp_path):
    """A configuration that trains a random model; changes are (old, new) pairs of its text."""

    def write(*changes: tuple[str, str], reward: str = REWARD) -> Path:
        text = config_text.replace('reward_mode = "oneshot"\n', "")
        text = text.replace("ctx = 64", "ctx = 64\nthreads = 1")
        for old, new in (('"base.gguf"', f'"{random_llama()}"'), *changes):
            assert old in text
            text = text.replace(old, new)
        return project(text + '\n[observe]\ndirectory = "out"\n', reward)

    return write


def records(folder: Path, kind: str) -> list[dict[str, object]]:
    lines = (folder / "observe.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["type"] == kind]


def test_a_run_leaves_an_adapter_its_records_and_a_summary(retrograd, run, tmp_path):
    done = retrograd("train", run(), "--name", "first", "--seed", "7")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[0] == "run first: GRPO, 2 updates"
    assert [line.split(":")[0] for line in lines if line.startswith("update ")] == [
        "update 1/2",
        "update 2/2",
    ]
    assert any(line.startswith("Finished 2 of 2 updates") for line in lines)
    assert "--lora" in done.stderr
    assert (tmp_path / "out/adapter.gguf").read_bytes()[:4] == b"GGUF"
    assert [record["update"] for record in records(tmp_path / "out", "update")] == [1, 2]
    assert len(records(tmp_path / "out", "rollout")) == 2 * 2 * 4
    params = records(tmp_path / "out", "run")[0]["params"]
    assert params["run"]["name"] == "first"
    assert params["grpo"]["sampling"]["seed"] == 7

    adapter = retrograd("inspect", tmp_path / "out/adapter.gguf")
    assert adapter.returncode == 0, adapter.stderr
    shown = dict(line.split(None, 1) for line in adapter.stdout.splitlines() if line[0] != " ")
    assert shown["kind"].strip() == "adapter"
    assert shown["rank"].strip() == "8"
    assert shown["alpha"].strip() == "16 (scale 2)"
    assert shown["targets"].startswith("q in 2 layers")


def test_paths_on_the_command_line_are_taken_from_the_working_folder(
    retrograd, run, random_llama, tmp_path
):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "other.gguf").symlink_to(random_llama(seed=1))
    done = retrograd(
        "train", run(), "--model", "other.gguf", "--output", "deep/result.gguf", cwd=elsewhere
    )
    assert done.returncode == 0, done.stderr
    assert (elsewhere / "deep/result.gguf").exists()
    assert not (tmp_path / "out/adapter.gguf").exists()
    assert records(tmp_path / "out", "run")[0]["model"] == str(elsewhere / "other.gguf")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("group_size", "group_sise"), "group_size"),
        (('"prompts.jsonl"', '"absent.jsonl"'), "absent.jsonl"),
        (("ctx = 64", "ctx = 12"), "ctx"),
        (("[training]", '[training]\nlr = "fast"'), "training.lr"),
    ],
)
def test_what_is_wrong_before_training_is_status_2(retrograd, run, tmp_path, change, said):
    done = retrograd("train", run(change))
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out/adapter.gguf").exists()


def test_a_reward_program_that_dies_is_status_1(retrograd, run):
    dies = REWARD.replace(
        "for line", "print('out of luck', file=sys.stderr)\nraise SystemExit(3)\nfor line"
    )
    done = retrograd("train", run(reward=dies))
    assert done.returncode == 1, done.stderr
    assert "exit status 3" in done.stderr
    assert "out of luck" in done.stderr
    assert "Traceback" not in done.stderr


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def interrupt(config: Path, *signals: int) -> subprocess.CompletedProcess[str]:
    """Start a long run and send the signals once it has finished two updates."""
    command = [str(Path(sys.executable).with_name("retrograd")), "train", str(config)]
    log = config.with_name("stderr.log")
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stderr=stderr)
        deadline = time.monotonic() + 120
        while "update 2/" not in log.read_text() and time.monotonic() < deadline:
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        for number in signals:
            process.send_signal(number)
            time.sleep(0.01)
        process.wait(120)
    return subprocess.CompletedProcess([], process.returncode, "", log.read_text())


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_one_signal_ends_the_run_well_and_keeps_the_adapter(run, tmp_path, number, status):
    done = interrupt(run(("updates = 2", "updates = 5000")), number)
    assert done.returncode == status, done.stderr
    assert "stopping, and keeping the adapter" in done.stderr
    assert "Stopped after" in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "out/adapter.gguf").read_bytes()[:4] == b"GGUF"
    assert len(records(tmp_path / "out", "update")) >= 2
    assert gone(int((tmp_path / "reward.pid").read_text()))


def test_the_second_ctrl_c_ends_the_run_at_once(run, tmp_path):
    done = interrupt(run(("updates = 2", "updates = 5000")), signal.SIGINT, signal.SIGINT)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert gone(int((tmp_path / "reward.pid").read_text()))
