from __future__ import annotations

import json
import os
import pty
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from event_files import curve, texts

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


@pytest.mark.parametrize("terminal", ["xterm", pytest.param("dumb", marks=pytest.mark.full)])
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


# -- going on ------------------------------------------------------------------------------------

CHECKPOINT = ("[grpo]\n", "[checkpoint]\nevery_steps = 1\n[grpo]\n")
BOARD = ("[grpo]\n", '[metrics]\ntensorboard_dir = "board"\n[grpo]\n')


def updates(count: int) -> tuple[str, str]:
    return "updates = 2", f"updates = {count}"


def adapter(folder: Path) -> bytes:
    return (folder / "adapter.gguf").read_bytes()


@pytest.fixture
def straight(retrograd, tmp_path):
    """The adapter that a configuration leads to without a stop."""

    def of(config: Path) -> bytes:
        done = retrograd("train", config, "--output", "straight/adapter.gguf", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return adapter(tmp_path / "straight")

    return of


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), SIGTERM])
def test_a_run_that_was_stopped_says_how_to_go_on_and_does(
    retrograd, run, straight, tmp_path, number, status
):
    config = run(updates(6), reward=interrupting(3, number))
    done = retrograd("train", config, cwd=tmp_path)
    assert done.returncode == status, done.stderr
    saved = "out/adapter.checkpoints/update-000003.ckpt"
    again = f"retrograd train {config} --resume"
    assert f"  checkpoint: {saved}\n  go on: {again}\n" in done.stderr
    assert (tmp_path / saved).is_file()
    (tmp_path / "reward.py").write_text(REWARD)
    done = retrograd("train", config, "--resume", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "  resumed: after update 3, from " in done.stderr
    assert "Finished 6 of 6 updates" in done.stderr
    assert "go on:" not in done.stderr
    assert [record["update"] for record in records(tmp_path / "out", "update")] == [*range(1, 7)]
    assert [r["resumed_from_update"] for r in records(tmp_path / "out", "run")] == [None, 3]
    assert adapter(tmp_path / "out") == straight(config)


@pytest.mark.full
def test_a_checkpoint_or_a_folder_of_them_can_be_named(retrograd, run, tmp_path):
    config = run(updates(3), CHECKPOINT)
    assert retrograd("train", config).returncode == 0
    folder = tmp_path / "out/adapter.checkpoints"
    kept = [f"update-{update:06d}.ckpt" for update in (1, 2, 3)]
    assert sorted(p.name for p in folder.iterdir()) == kept
    before = adapter(tmp_path / "out")
    one = retrograd("train", config, "--resume", folder / kept[0])
    assert one.returncode == 0, one.stderr
    assert f"  resumed: after update 1, from {folder / kept[0]}" in one.stderr
    moved = folder.rename(tmp_path / "moved")
    (moved / kept[2]).write_bytes(b"")
    other = retrograd("train", config, moved, "--resume")
    assert other.returncode == 0, other.stderr
    assert f"warning: {moved / kept[2]}: is not a checkpoint of retrograd" in other.stderr
    assert f"  resumed: after update 2, from {moved / kept[1]}" in other.stderr
    assert adapter(tmp_path / "out") == before


def test_what_cannot_be_resumed_is_refused_with_a_message(retrograd, run, tmp_path):
    config = run()
    for arguments, words in (
        (["--resume"], "to begin from the start, leave out --resume"),
        (["--resume", tmp_path / "gone.ckpt"], "gone.ckpt: there is no such checkpoint"),
        ([tmp_path / "some.ckpt"], "some.ckpt: write --resume before it, to go on from there"),
    ):
        done = retrograd("train", config, *arguments)
        assert done.returncode == 2, done.stderr
        assert words in done.stderr
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "out/observe.jsonl").exists()


@pytest.mark.full
def test_another_seed_is_another_run(retrograd, run):
    config = run()
    assert retrograd("train", config).returncode == 0
    done = retrograd("train", config, "--resume", "--seed", "7")
    assert done.returncode == 2
    assert "grpo.sampling.seed: 42 at the checkpoint, 7 now" in done.stderr


def kill(command: list[str], folder: Path, delay: float, *, at_work: bool) -> None:
    """Start a run and kill it after ``delay`` seconds, counted from its first new update where it
    is to be ``at_work`` by then."""
    child = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        said = []
        while at_work and not (said and said[-1].startswith("update ")):
            said.append(child.stderr.readline())
            assert said[-1], "".join(said)
        time.sleep(delay)
    finally:
        child.kill()
        child.wait()
        child.stderr.close()


@pytest.mark.parametrize(
    ("kills", "count"), [(2, 25), pytest.param(30, 300, marks=pytest.mark.full)]
)
def test_killed_at_random_moments_a_run_can_always_go_on_to_the_same_end(
    retrograd, retrograd_path, run, straight, tmp_path, kills, count
):
    """A save follows every step, so that many of the kills meet one."""
    config = run(updates(count), CHECKPOINT, BOARD)
    folder, moments = tmp_path / "out/adapter.checkpoints", random.Random(kills)
    for number in range(kills):
        command = [str(retrograd_path), "train", str(config)]
        command += ["--resume"] if any(folder.glob("*.ckpt")) else []
        at_work = number % 5 < 4
        kill(command, tmp_path, moments.uniform(0, 0.2 if at_work else 3.0), at_work=at_work)
    reached = max(int(path.stem[-6:]) for path in folder.glob("*.ckpt"))
    assert kills // 2 < reached < count, "the kills met runs that were at work"
    done = retrograd("train", config, "--resume")
    assert done.returncode == 0, done.stderr
    assert "is damaged" not in done.stderr
    newest = max((tmp_path / "board").iterdir(), key=lambda folder: folder.stat().st_mtime)
    assert [step for step, _ in curve(newest, "reward/mean")] == [*range(1, count + 1)]
    assert adapter(tmp_path / "out") == straight(config)


@pytest.mark.full
def test_a_run_is_followed_in_tensorboard_over_a_stop(retrograd, run, tmp_path):
    config = run(updates(4), BOARD, reward=interrupting(3, signal.SIGINT))
    done = retrograd("train", config, "--name", "sums/one", cwd=tmp_path)
    assert done.returncode == 130, done.stderr
    folder = tmp_path / "board/sums_one"
    assert f"TensorBoard reads this run in {folder}.\n" in done.stderr
    assert "  tensorboard: tensorboard --logdir board/sums_one" in done.stderr
    again = f"retrograd train {config} --resume --name sums/one"
    assert f"  go on: {again}\n" in done.stderr
    (tmp_path / "reward.py").write_text(REWARD)
    done = retrograd(*shlex.split(again)[1:], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"in {folder}, where it goes on after update 3." in done.stderr
    told = [record["metrics"]["reward/mean"] for record in records(tmp_path / "out", "update")]
    assert curve(folder, "reward/mean") == [
        (update, pytest.approx(value)) for update, value in enumerate(told, start=1)
    ]
    assert "answer**, reward" in texts(folder, "answers")[1]
    assert '"name": "sums/one"' in texts(folder, "config")[0]


def test_a_place_for_tensorboard_that_cannot_be_written_ends_the_run_before_it_computes(
    retrograd, run, tmp_path
):
    (tmp_path / "board").write_text("a file")
    done = retrograd("train", run(BOARD))
    assert done.returncode == 2
    assert "Name a folder that can be written with [metrics].tensorboard_dir" in done.stderr
    assert "update 1" not in done.stderr
    assert not (tmp_path / "out/adapter.gguf").exists()
