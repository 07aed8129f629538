"""Merging itself: base + adapter to a file that needs no second one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from trainer.errors import ModelError, RetrogradError
from trainer.gguf.file import GgufFile
from trainer.gguf.partial import written_whole
from trainer.llama.quantiser import quantise
from trainer.merge.plan import Plan

T = TypeVar("T")
Stage = Callable[[str, int, int], None]
"""Hears what is done at present (``add``, ``write``), and how many tensors of how many."""


def merge(
    plan: Plan,
    target: Path,
    check: Callable[[Path], T],
    *,
    threads: int,
    told: Stage = lambda *_: None,
) -> T:
    """Write the merged model beside ``target``, ``check`` it, and only then let it take the place
    of what is there; the result is that of ``check``.

    First the whole model with the adapted tensors in F32, then the quantiser's file made of it. No
    more than a few rows are in memory at a time, and after an error, an interrupt or a kill nothing
    is at ``target`` that was not there before.

    Raises RetrogradError where a file cannot be written, ModelError where llama.cpp fails, and what
    ``check`` raises.
    """
    with _disk_errors(target), written_whole(target) as candidate:
        whole = candidate.with_name(f"{candidate.name.removesuffix('.partial')}.whole.partial")
        try:
            plan.rewriting.write(whole, lambda done, total: told("add", done, total))
            _check_sums(whole, plan)
            job = plan.job(whole, candidate, threads)
            quantise(job, lambda done, total: told("write", done, total))
        finally:
            whole.unlink(missing_ok=True)
        _check_whole(candidate, plan)
        return check(candidate)


def _check_sums(whole: Path, plan: Plan) -> None:
    """Before anything is rounded, because no type of the result can hide an error here."""
    file = _read_again(whole)
    for name in plan.factors.targets:
        plan.factors.check_sum(file, name)


def _check_whole(path: Path, plan: Plan) -> None:
    """The quantiser tells of no write that failed, so its file is read again."""
    made = _read_again(path).tensors
    for name, info in plan.rewriting.base.tensors.items():
        if name not in made or made[name].shape != info.shape:
            raise ModelError(f"{path}: llama.cpp left out or changed the tensor {name}.")


def _read_again(path: Path) -> GgufFile:
    try:
        return GgufFile(path)
    except ModelError as error:
        raise RetrogradError(
            f"{path}: was not written whole; the disk is full, or fails. Free some space, or write "
            f"to another place."
        ) from error


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RetrogradError(
            f"{path}: cannot be written ({error.strerror or error}). Free some space, or write to "
            f"another place."
        ) from error
