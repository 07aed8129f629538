"""Pays for Python code that passes tests: the share of calls that give the right value.

    python3 unit_tests.py [--seconds 2] [--memory-mib 512]

Each line of the prompt file has `tests`, a list of pairs: a call, and the value it has to give.

    {"messages": […], "tests": [["double(2)", 4], ["double('ab')", "abab"]]}

The code is the only block between ``` and ```, or the whole answer where there is none. Several
blocks get 0. Values are compared as JSON: a tuple is a list, keys are texts, 1 is 1.0 and not true.

    0.1  the code runs, so far that some call gives a value, right or wrong. (A comment is code that
         runs, too, and is not worth anything.)
    0.9  the share of calls that give the right value

The answers' code runs in a process of its own, in an empty folder, without the environment of
retrograd. It has so many seconds, so much memory, 1 MiB for a file, and may start no processes
(that last limit does not hold for root; macOS has none on memory). The right values stay outside:
the process is told the calls and tells what they gave, so that code that ends early or prints
"passed" has passed nothing.

**This is no sandbox.** The limits are for code that goes wrong, as a model's often does: loops
without end, memory without end. Code that means harm can read and delete what you can, and talk to
the network. Where that matters, run retrograd in a container or as a user who owns nothing.

parts: `runs` and `passed`, each from 0 to 1.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

PROTOCOL = "retrograd-reward/1"
ECHOED = ("_retrograd_batch", "_retrograd_index")
MOST_CHARACTERS = 20_000
"""A longer answer gets 0 and is not run."""
MOST_BYTES = 2**20
"""Of each file that the code writes, and of what its calls give, together."""
FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)

# What the process runs. It sets its limits before it runs any code of the answer. What it tells
# goes through a descriptor of its own, so that what the code prints is not among it.
RUNNER = """
import json, os, resource, signal, sys

job = json.loads(sys.stdin.read())
seconds, memory, size = job["seconds"], job["memory"], job["size"]
for name, limit in (
    ("CPU", int(seconds) + 1), ("AS", memory), ("FSIZE", size), ("CORE", 0), ("NPROC", 0),
    ("NOFILE", 32),
):
    try:
        resource.setrlimit(getattr(resource, "RLIMIT_" + name), (limit, limit))
    except (AttributeError, ValueError, OSError):
        pass  # this system has no such limit
signal.setitimer(signal.ITIMER_REAL, seconds + 1)  # should the one who started this be gone
out = os.dup(1)
nowhere = os.open(os.devnull, os.O_RDWR)
for descriptor in (0, 1, 2):
    os.dup2(nowhere, descriptor)
names = {"__name__": "answer"}
try:
    exec(compile(job["code"], "answer", "exec"), names)
except BaseException:
    os._exit(1)
for index, call in enumerate(job["calls"]):
    try:
        told = json.dumps([index, eval(call, names)], allow_nan=False)
    except BaseException:
        continue
    os.write(out, told.encode() + b"\\n")
os._exit(0)
"""


def code_in(completion: str) -> str | None:
    """The code of an answer, or None where it cannot be told which it is."""
    if len(completion) > MOST_CHARACTERS:
        return None
    blocks = FENCED.findall(completion)
    if len(blocks) > 1:
        return None
    return blocks[0] if blocks else completion


def same(one: Any, other: Any) -> bool:
    """As JSON; numbers within rounding of a double."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, float) or isinstance(other, float):
        numbers = isinstance(one, int | float) and isinstance(other, int | float)
        return numbers and math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return type(one) is type(other) and bool(one == other)


def run(code: str, calls: list[str], seconds: float, memory: int) -> list[bytes]:
    """What the process tells: a line for each call that gave a value. After `seconds` it is ended,
    with what it started."""
    limits = {"seconds": seconds, "memory": memory, "size": MOST_BYTES}
    job = json.dumps({"code": code, "calls": calls, **limits}).encode()
    with TemporaryDirectory(prefix="retrograd-tests-") as folder:
        empty = Path(folder, "empty")
        empty.mkdir()
        with Path(folder, "told").open("w+b") as told:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", RUNNER],
                stdin=subprocess.PIPE,
                stdout=told,
                stderr=subprocess.DEVNULL,
                cwd=empty,
                env={},
                process_group=0,
            )
            try:
                process.communicate(job, timeout=seconds)
            except (subprocess.TimeoutExpired, BrokenPipeError):
                pass
            finally:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            told.seek(0)
            return told.read(MOST_BYTES).splitlines()


def values_of(lines: list[bytes]) -> dict[int, Any]:
    """What each call gave, by its index. The code can write lines of its own here; it still has to
    know the right value."""
    values: dict[int, Any] = {}
    for line in lines:
        with suppress(ValueError, TypeError, RecursionError):
            index, value = json.loads(line)
            if isinstance(index, int):
                values.setdefault(index, value)
    return values


def tests_of(metadata: dict[str, Any]) -> list[tuple[str, Any]]:
    tests = metadata.get("tests")
    if not isinstance(tests, list) or not tests:
        sys.exit(f'`tests` has to be a list such as [["double(2)", 4]], and is {tests!r}')
    for test in tests:
        if not isinstance(test, list) or len(test) != 2 or not isinstance(test[0], str):
            sys.exit(f"a test has to be a call and the value that it has to give, not {test!r}")
    return [(call, value) for call, value in tests]


def score(
    completion: str, metadata: dict[str, Any], seconds: float = 2.0, memory: int = 512 * 2**20
) -> dict[str, Any]:
    """`memory` is in bytes."""
    tests = tests_of(metadata)
    code = code_in(completion)
    if code is None or not code.strip():
        return {"reward": 0.0, "parts": {"runs": 0.0, "passed": 0.0}}
    values = values_of(run(code, [call for call, _ in tests], seconds, memory))
    passed = 0
    for index, (_, wanted) in enumerate(tests):
        # A whole number that no double holds is compared with one, or lists within lists.
        with suppress(RecursionError, OverflowError):
            passed += index in values and same(values[index], wanted)
    runs = float(bool(values))
    share = passed / len(tests)
    parts = {"runs": runs, "passed": round(share, 4)}
    return {"reward": round(0.1 * runs + 0.9 * share, 4), "parts": parts}


def serve(score: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer retrograd's lines until they end; with `reward_mode = "oneshot"` as well.

    This function is the same in every program of this folder.
    """
    sys.stdin.reconfigure(encoding="utf-8")
    for line in sys.stdin:
        message = json.loads(line)
        if "protocol" in message:
            if message["protocol"] != PROTOCOL:
                sys.exit(f"this program speaks {PROTOCOL}, not {message['protocol']}")
            reply = {"protocol": PROTOCOL}
        elif "_retrograd_batch_end" in message:
            reply = message
        else:
            if not isinstance(message.get("completion"), str):
                sys.exit(f"`completion` has to be text: {line[:200]}")
            reply = score(message) | {name: message[name] for name in ECHOED if name in message}
        print(json.dumps(reply), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Pays for code that passes tests.")
    parser.add_argument("--seconds", type=float, default=2.0, metavar="N")
    parser.add_argument("--memory-mib", type=int, default=512, metavar="N")
    given = parser.parse_args()
    if not 0 < given.seconds <= 600:
        parser.error("--seconds has to be above 0 and at most 600")
    memory = given.memory_mib * 2**20
    serve(lambda m: score(m["completion"], m.get("metadata", {}), given.seconds, memory))


if __name__ == "__main__":
    main()
