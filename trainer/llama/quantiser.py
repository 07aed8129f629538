"""llama.cpp's quantiser: any model in any type that it writes.

It runs in a process of its own. In this one it could not be interrupted, and an assertion of its
would end a run that has just been trained.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import llama_cpp

from trainer.errors import ModelError
from trainer.llama.native import start_native

Progress = Callable[[int, int], None]
"""Hears how many tensors are done, of how many."""


def _file_types() -> dict[str, int]:
    found = {}
    for name in dir(llama_cpp):
        if match := re.fullmatch(r"LLAMA_FTYPE_(?:ALL|MOSTLY)_(\w+)", name):
            found[match[1].lower()] = int(getattr(llama_cpp, name))
    return found


FILE_TYPES: Final[Mapping[str, int]] = _file_types()
"""llama.cpp's numbers for the types of whole files, by name (``f16``, ``q4_k_m``)."""

_BUFFER_BYTES = 64 << 20
_KEPT_LINES = 40
_STEP = re.compile(r"\[ *(\d+)/ *(\d+)\] ")
_SIZE = re.compile(r"quant size += +([\d.]+) MiB")
_FALLBACK = re.compile(
    r"warning: (\S+) +- ncols +(\d+) not divisible by (\d+) \(required for type +(\S+)\)"
    r" -> falling back to +(\S+)"
)
_IMPORTANCE = "require an imatrix"


@dataclass(frozen=True, slots=True)
class QuantiserJob:
    """``tensor_types`` are ggml's types for tensors that are not to get the file type's.
    ``file_type_told`` is the number that the file states, where it is not to be ``file_type``.
    ``temporary`` files are removed where nobody waits for the job any more. Without a ``target``
    nothing is written."""

    source: Path
    target: Path | None
    file_type: int
    threads: int
    tensor_types: Mapping[str, int] = field(default_factory=dict)
    file_type_told: int | None = None
    temporary: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Fallback:
    """A tensor whose rows of ``columns`` numbers do not fill blocks of the ``wanted`` type, and the
    type it has ``got`` in its place."""

    tensor: str
    columns: int
    wanted: str
    got: str


@dataclass(frozen=True, slots=True)
class Quantised:
    """``tensor_bytes`` of the result, to a hundredth of a MiB. ``needs_importance`` tells that the
    job is not done without a measure of which inputs matter."""

    tensor_bytes: int
    fallbacks: tuple[Fallback, ...]
    needs_importance: bool


def quantise(job: QuantiserJob, progress: Progress = lambda *_: None) -> Quantised:
    """Write ``job.source`` as ``job.target``. Where it is cut short the target may hold a part.

    Raises:
        ModelError: llama.cpp refuses the job or fails; the message quotes it.
    """
    start_native()  # refuses another release of the binding
    lines: deque[str] = deque(maxlen=_KEPT_LINES)
    size, fallbacks, importance, status = 0, [], False, None
    with _process(job) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if step := _STEP.match(line):
                progress(int(step[1]), int(step[2]))
            elif found := _SIZE.search(line):
                size = int(float(found[1]) * 2**20)
            elif found := _FALLBACK.search(line):
                fallbacks.append(Fallback(found[1], int(found[2]), found[4], found[5]))
            elif line.startswith('{"status"'):
                status = json.loads(line)["status"]
            elif line.strip():
                lines.append(line.strip())
            importance = importance or _IMPORTANCE in line
        returned = process.wait()
    if status != 0:
        end = "" if status is not None else f" (its process ended with status {returned})"
        quoted = " / ".join(_telling(lines)) or "gave no reason"
        raise ModelError(
            f"{job.source}: llama.cpp's quantiser failed{end}; llama.cpp says: {quoted}"
        )
    return Quantised(size, tuple(fallbacks), importance)


def _telling(lines: deque[str]) -> list[str]:
    """The lines that tell what went wrong, else the last ones."""
    failed = [line for line in lines if re.search(r"fail|error|assert|invalid", line, re.I)]
    return (failed or list(lines))[-2:]


@contextmanager
def _process(job: QuantiserJob) -> Iterator[subprocess.Popen[str]]:
    """The process at its job; it does not outlive the block."""
    command = [sys.executable, "-P", str(Path(__file__).with_name("quantiser_process.py"))]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    assert process.stdin is not None
    try:
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(_as_json(job)) + "\n")
            process.stdin.flush()
        yield process
    finally:
        process.kill()
        process.communicate()


def _as_json(job: QuantiserJob) -> dict[str, object]:
    told = job.file_type_told
    return {
        "source": str(job.source),
        "target": str(job.target or os.devnull),
        "file_type": job.file_type,
        "threads": job.threads,
        "dry": job.target is None,
        "temporary": [str(path) for path in job.temporary],
        "buffer_bytes": _BUFFER_BYTES,
        "metadata": {} if told is None else {"general.file_type": told},
        "tensor_types": [[f"^{_escaped(n)}$", kind] for n, kind in job.tensor_types.items()],
    }


def _escaped(name: str) -> str:
    """``name`` as a pattern of C++'s regular expressions that fits nothing else."""
    return re.sub(r"[^\w]", lambda found: "\\" + found[0], name)
