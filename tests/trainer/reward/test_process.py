import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from left_over import left

from trainer.reward.process import ProgramProcess, program_environment, require_command
from trainer.reward.report import ProgramError


@pytest.fixture
def start(tmp_path):
    started = []

    def start_(*command):
        started.append(ProgramProcess(command, tmp_path))
        return started[-1]

    yield start_
    for process in started:
        process.end()


def read_until(process, text):
    """What the process wrote to stdout, once `text` is in it."""
    seen = ""
    while text not in seen:
        try:
            seen += os.read(process.stdout.fileno(), 4096).decode()
        except BlockingIOError:
            time.sleep(0.005)
    return seen


def is_alive(process):
    """A dead orphan may wait a moment for the system's first process to reap it."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until_dead(process):
    deadline = time.monotonic() + 10
    while is_alive(process):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_program_runs_in_its_own_session_and_in_the_folder(start, tmp_path):
    source = "import os; print(os.getsid(0), os.getpgrp(), os.getcwd(), flush=True); input()"
    process = start(sys.executable, "-c", source)
    assert read_until(process, "\n").split() == [str(process.pid)] * 2 + [str(tmp_path)]


def test_folder_of_this_interpreter_comes_first_on_path():
    first = program_environment()["PATH"].split(os.pathsep)[0]
    assert first == sys.executable.rpartition("/")[0]


def test_python3_is_the_interpreter_that_runs_retrograd(start):
    process = start("python3", "-c", "import sys; print(sys.prefix, flush=True)")
    assert read_until(process, "\n").strip() == sys.prefix


@pytest.mark.parametrize(("given", "passed_on"), [(None, "none"), ("1000", "1000"), ("0", "0")])
def test_the_trainers_own_spin_count_is_kept_from_the_program(tmp_path, given, passed_on):
    """Its GOMP_SPINCOUNT is there where torch is loaded, and a user's own reaches the program."""
    source = """
import os, time
from pathlib import Path
from trainer.reward.process import ProgramProcess
print(os.environ["GOMP_SPINCOUNT"])
command = ["sh", "-c", "echo ${GOMP_SPINCOUNT-none} > seen"]
process = ProgramProcess(command, Path.cwd())
process.wait_exited(10)
process.end()
"""
    environment = {k: v for k, v in os.environ.items() if k != "GOMP_SPINCOUNT"}
    if given is not None:
        environment["GOMP_SPINCOUNT"] = given
    own = subprocess.run(
        [sys.executable, "-c", source],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert own.strip() == (given or "1000")
    assert (tmp_path / "seen").read_text().strip() == passed_on


def test_a_start_that_is_not_completed_leaves_nothing(tmp_path, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    me = psutil.Process()
    before = me.num_fds()
    monkeypatch.setattr("threading.Thread.start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        ProgramProcess(["sleep", "600"], tmp_path)
    assert left() == []
    assert me.num_fds() == before


def test_ending_takes_grandchildren_with_it(start):
    process = start("sh", "-c", "sleep 600 & sh -c 'sleep 600 & echo up; wait' & wait")
    read_until(process, "up")
    members = process.members()
    assert len(members) >= 4
    assert process.end() == -signal.SIGTERM
    assert not any(is_alive(member) for member in members)


def test_grandchild_of_a_leader_that_has_ended_is_ended(start):
    process = start("sh", "-c", "sleep 600 & exit 3")
    assert process.wait_exited(5)
    (sleeper,) = process.members()
    assert process.end() == 3
    assert not is_alive(sleeper)


def test_who_ignores_termination_is_killed(start, monkeypatch):
    monkeypatch.setattr("trainer.reward.process.TERMINATE_PATIENCE_SECONDS", 0.5)
    process = start("sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done")
    read_until(process, "up")
    started = time.monotonic()
    assert process.end() == -signal.SIGKILL
    assert 0.5 <= time.monotonic() - started < 5


def test_ending_twice_is_harmless_and_keeps_the_status(start):
    process = start("sh", "-c", "exit 4")
    assert process.wait_exited(5)
    assert (process.end(), process.end()) == (4, 4)
    assert not psutil.pid_exists(process.pid)


def test_stderr_tail_is_bounded_and_never_blocks(start):
    source = "import sys; sys.stderr.write('x' * 3_000_000 + 'END'); print('done', flush=True)"
    process = start(sys.executable, "-c", source)
    read_until(process, "done")
    process.end()
    tail = process.stderr_tail()
    assert tail.endswith("xxxEND")
    assert len(tail) == 16 * 1024


def test_end_does_not_wait_for_a_daemon_that_holds_stderr(start):
    source = (
        "import subprocess, sys; sleeper = subprocess.Popen(['sleep', '600'],"
        " start_new_session=True); print(sleeper.pid, flush=True); sys.exit(0)"
    )
    process = start(sys.executable, "-W", "ignore", "-c", source)
    daemon = psutil.Process(int(read_until(process, "\n")))
    started = time.monotonic()
    process.end()
    assert time.monotonic() - started < 2
    daemon.kill()  # It left the group on purpose; only this test may end it.
    wait_until_dead(daemon)


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("no-such-command-here", 'no command "no-such-command-here" in the folders of PATH'),
        ("./missing.sh", 'no command "./missing.sh" at that path'),
        ("./plain.txt", "is not an executable file"),
    ],
)
def test_command_that_cannot_run_is_named(tmp_path, command, problem):
    (tmp_path / "plain.txt").write_text("not a program")
    with pytest.raises(ProgramError, match=problem):
        require_command([command], tmp_path)


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(ProgramError, match="folder does not exist"):
        require_command(["sh"], tmp_path / "gone")


@pytest.mark.parametrize("first_line", ["#!/no/such/interpreter", "neither script nor binary"])
def test_script_that_the_system_refuses(tmp_path, first_line):
    script = Path(tmp_path / "reward")
    script.write_text(first_line + "\n")
    script.chmod(0o755)
    require_command(["./reward"], tmp_path)
    with pytest.raises(ProgramError, match="cannot start") as caught:
        ProgramProcess(["./reward"], tmp_path)
    assert "first line" in caught.value.advice


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is unread")
def test_unread_input_is_told_from_input_that_was_read(start):
    source = "import sys; sys.stdin.readline(); print('read', flush=True); sys.stdin.readline()"
    process = start(sys.executable, "-u", "-c", source)
    assert process.left_input() is False
    process.stdin.write(b"one\n")
    read_until(process, "read")
    assert process.left_input() is False
    process.stdin.write(b"two\n")
    assert process.wait_exited(10)
    process = start("sleep", "600")
    process.stdin.write(b"one\n")
    assert process.left_input() is True


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is unread")
def test_what_a_program_left_unread_is_known_after_its_end(start):
    process = start(sys.executable, "-c", "input()")
    process.stdin.write(b"one\n")
    assert process.wait_exited(10)
    assert process.left_input() is False
    process = start(sys.executable, "-c", "import time; time.sleep(0.5)")
    process.stdin.write(b"one\n")
    assert process.wait_exited(10)
    assert process.left_input() is True
