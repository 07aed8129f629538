from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
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


@pytest.mark.full
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


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def interrupting(batch: int, *signals: signal.Signals) -> str:
    """A reward program that sends its parent these signals before it scores the answers of an
    update, counted from 1; in place of update 0, at its start."""
    send = "import signal, time\n"
    for number in signals:
        send += f"os.kill(os.getppid(), signal.{number.name}); time.sleep(0.1)\n"
    if batch == 0:
        return REWARD.replace("for line", send + "for line")
    now = f"message.get('_retrograd_batch') == {batch} and message['_retrograd_index'] == 0"
    once = f"    if {now}:\n" + "".join(f"        {line}\n" for line in send.splitlines())
    return REWARD.replace('    if "completion"', once + '    if "completion"')


SIGTERM = pytest.param(signal.SIGTERM, 143, marks=pytest.mark.full)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), SIGTERM])
def test_one_signal_lets_the_update_at_hand_end_and_keeps_the_adapter(
    retrograd, run, tmp_path, number, status
):
    config = run(("updates = 2", "updates = 50"), reward=interrupting(2, number))
    done = retrograd("train", config)
    assert done.returncode == status, done.stderr
    assert "stopping, and keeping the adapter" in done.stderr
    assert "Stopped after 2 of 50 updates" in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "out/adapter.gguf").read_bytes()[:4] == b"GGUF"
    assert len(records(tmp_path / "out", "update")) == 2
    assert gone(int((tmp_path / "reward.pid").read_text()))


def test_the_second_ctrl_c_ends_the_run_at_once_and_keeps_what_was_finished(
    retrograd, run, tmp_path
):
    twice = interrupting(2, signal.SIGINT, signal.SIGINT)
    done = retrograd("train", run(("updates = 2", "updates = 50"), reward=twice))
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert (tmp_path / "out/adapter.gguf").read_bytes()[:4] == b"GGUF"
    assert len(records(tmp_path / "out", "update")) == 1
    assert gone(int((tmp_path / "reward.pid").read_text()))


# Makes the terminal on its stdin the one that a closing hangs up on, and becomes a command.
TAKE_TERMINAL = """\
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.parametrize("terminal", ["xterm", "dumb"])
def test_a_terminal_that_closes_ends_the_run_and_keeps_the_adapter(
    retrograd_path, run, tmp_path, monkeypatch, terminal
):
    monkeypatch.setenv("TERM", terminal)
    config = run(("updates = 2", "updates = 5000"))
    master, slave = pty.openpty()
    command = [sys.executable, "-c", TAKE_TERMINAL, str(retrograd_path), "train", str(config)]
    child = subprocess.Popen(command, stdin=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    shown = b""
    try:
        while b"best" not in shown:  # the sample that follows the first update
            shown += os.read(master, 4096)
        os.close(master)
        assert child.wait(timeout=60) == 129, shown
    except OSError:
        pytest.fail(f"the run ended by itself: {shown.decode()}")
    finally:
        child.kill()
        child.wait()
    assert (tmp_path / "out/adapter.gguf").read_bytes()[:4] == b"GGUF"
    assert len(records(tmp_path / "out", "update")) < 5000
    assert gone(int((tmp_path / "reward.pid").read_text()))


def test_ctrl_c_while_the_run_prepares_ends_it_without_a_result(retrograd, run, tmp_path):
    done = retrograd("train", run(reward=interrupting(0, signal.SIGINT)))
    assert done.returncode == 130, done.stderr
    assert "Stopped at once." in done.stderr
    assert "update 1/2" not in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out/adapter.gguf").exists()
    assert gone(int((tmp_path / "reward.pid").read_text()))


ENDINGS = [(signal.SIGINT, 130, "Stopped.\n"), (signal.SIGTERM, 143, "Stopped at once.\n")]


@pytest.mark.parametrize("command", [("check",), ("reward", "test")])
@pytest.mark.parametrize(("number", "status", "said"), ENDINGS)
def test_a_signal_ends_a_check_and_a_trial_as_well_and_their_reward_program(
    retrograd, run, tmp_path, command, number, status, said
):
    done = retrograd(*command, run(reward=interrupting(0, number)))
    assert done.returncode == status, done.stdout + done.stderr
    assert done.stderr == said
    assert gone(int((tmp_path / "reward.pid").read_text()))
