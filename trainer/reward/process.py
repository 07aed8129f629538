"""A reward program as the operating system sees it: one process group, ended as a whole."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import termios
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import psutil

from trainer.reward.report import ProgramError
from trainer.reward.stderr import StderrTail

TERMINATE_PATIENCE_SECONDS = 2.0
KILL_PATIENCE_SECONDS = 2.0
# What trainer/__init__.py sets where the user has not: it suits the trainer's threads alone.
_OWN_SPINCOUNT = "1000"


def program_environment() -> dict[str, str]:
    """Our environment with this interpreter's folder first on ``PATH``, and without the
    ``GOMP_SPINCOUNT`` that ``trainer`` sets for itself; one of the user's own is passed on.

    The folder is not resolved: in a virtual environment the interpreter is a link, and only its
    own folder makes ``python3`` see the packages installed there.
    """
    environment = dict(os.environ)
    if environment.get("GOMP_SPINCOUNT") == _OWN_SPINCOUNT and not _was_given("GOMP_SPINCOUNT"):
        del environment["GOMP_SPINCOUNT"]
    folder = str(Path(sys.executable).parent)
    environment["PATH"] = os.pathsep.join([folder, environment.get("PATH", os.defpath)])
    return environment


def _was_given(variable: str) -> bool:
    """Whether this process was started with ``variable``, whatever was set since."""
    return variable in psutil.Process().environ()


def require_command(command: Sequence[str], folder: Path) -> None:
    """Raises ``ProgramError`` when the first word of ``command`` cannot be run from ``folder``."""
    if not folder.is_dir():
        raise ProgramError("cannot start, because that folder does not exist")
    name = command[0]
    path = folder / name if os.sep in name else None
    if shutil.which(path or name, path=program_environment()["PATH"]):
        return
    if path is not None and path.exists():
        raise ProgramError(
            f"cannot start, because {path} is not an executable file",
            advice='Make it executable (chmod +x), or name its interpreter first, as in ["python3",'
            ' "reward.py"]',
        )
    where = "at that path" if path else "in the folders of PATH"
    raise ProgramError(
        f'cannot start, because there is no command "{name}" {where}',
        advice="The command is run directly, not by a shell: each argument is an item of the list,"
        ' and a program that lies in that folder is written "./NAME"',
    )


class ProgramProcess:
    """A running program that leads a session and process group of its own.

    ``stdin`` and ``stdout`` are unbuffered and do not block. The leader is reaped by ``end`` alone,
    after the last signal to the group: until then its process id, and so the group's, cannot
    belong to anyone else.
    """

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        """Raises ``ProgramError`` when the command cannot be started."""
        try:
            self._popen = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=folder,
                env=program_environment(),
                start_new_session=True,
                bufsize=0,
            )
        except (OSError, ValueError) as error:
            raise ProgramError(
                f"cannot start: {error}",
                advice="A script needs execute permission and a first line that names an"
                " interpreter which exists",
            ) from error
        try:
            self.stdin = _non_blocking(self._popen.stdin)
            self.stdout = _non_blocking(self._popen.stdout)
            self._leader = psutil.Process(self._popen.pid)
            self._stderr = StderrTail(_present(self._popen.stderr))
        except BaseException:
            self._abandon()
            raise

    @property
    def pid(self) -> int:
        return self._popen.pid

    def stderr_tail(self) -> str:
        return self._stderr.text()

    def fresh_stderr(self) -> str:
        return self._stderr.fresh()

    def exited(self) -> bool:
        """Whether the leader has ended. It stays unreaped, see the class."""
        return not _is_alive(self._leader)

    def wait_exited(self, seconds: float) -> bool:
        return _wait_until(self.exited, seconds)

    def wait_gone(self, seconds: float) -> bool:
        """Waits for every process of the group to end by itself."""
        return _wait_until(lambda: not self.members(), seconds)

    def members(self) -> list[psutil.Process]:
        """The living processes of the group, the leader included."""
        if self._popen.returncode is not None:
            return []
        return [process for process in _group(self.pid) if _is_alive(process)]

    def cpu_seconds(self) -> float:
        """Processor time used so far by the group's living processes."""
        return sum(_cpu_seconds(process) for process in self.members())

    def waits_on_pipe(self) -> bool:
        """Whether a process of the group may be blocked in reading a pipe.

        Only Linux tells; where it is not known the answer is true.
        """
        return any(_may_read_pipe(process.pid) for process in self.members())

    def left_input(self) -> bool:
        """Whether some of what was sent to it so far is unread; to be called before ``end``.

        Only Linux tells; where it is not known the answer is false.
        """
        if self.stdin.closed:  # as it is after a write that found nobody to read
            return True
        if sys.platform != "linux":
            return False
        count = array("i", [0])
        fcntl.ioctl(self.stdin, termios.FIONREAD, count)
        return count[0] > 0

    def end(self) -> int:
        """Terminates, kills and reaps the whole group; returns the leader's exit status.

        A leader that ended before keeps the status it ended with. Calling again is harmless.
        """
        if self._popen.returncode is not None:
            return self._popen.returncode
        try:
            if self.members():
                self._signal(signal.SIGTERM)
                self.wait_gone(TERMINATE_PATIENCE_SECONDS)
        finally:
            self._kill_and_reap()
        return self._popen.wait()

    def _kill_and_reap(self) -> None:
        # Sent whatever the look at the group said: it may have missed a process just forked.
        self._signal(signal.SIGKILL)
        self.wait_gone(KILL_PATIENCE_SECONDS)
        self._popen.wait()
        self.stdin.close()
        self.stdout.close()
        self._stderr.stop()

    def _abandon(self) -> None:
        """Ends a program of which not even the start was completed."""
        self._signal(signal.SIGKILL)
        self._popen.wait()
        for stream in (self._popen.stdin, self._popen.stdout, self._popen.stderr):
            _present(stream).close()

    def _signal(self, number: signal.Signals) -> None:
        # A group of which only the unreaped leader is left refuses signals on some systems.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def _present(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None, "Popen was asked for a pipe"
    return stream


def _non_blocking(stream: IO[bytes] | None) -> IO[bytes]:
    present = _present(stream)
    os.set_blocking(present.fileno(), False)
    return present


def _group(group: int) -> list[psutil.Process]:
    found = []
    for pid in psutil.pids():
        try:
            if os.getpgid(pid) == group:
                found.append(psutil.Process(pid))
        except (ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            continue  # It ended between two looks, or belongs to another session.
    return found


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def _cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0.0
    return float(times.user + times.system)


def _may_read_pipe(pid: int) -> bool:
    try:
        place = Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        return True
    # "0" is a kernel that does not tell, or a process that runs, which its processor time shows.
    return place in ("", "0") or "pipe_read" in place


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    pause = 0.002
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return True
