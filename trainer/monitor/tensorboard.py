"""A run in TensorBoard: its metrics, evaluations, configuration and some of its answers."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path

from tensorboardX.proto.summary_pb2 import Summary

from trainer.errors import ConfigError
from trainer.health.headline import headline_of
from trainer.health.resolve import lookup
from trainer.monitor.base import SilentMonitor
from trainer.monitor.eventfile import (
    MOST_CHARS,
    EventFile,
    SampledUpdates,
    configuration,
    hyperparameters,
    samples,
    scalars,
)
from trainer.monitor.protocol import GroupRecord, Outcome, RunInfo, UpdateStatus

OWNER = "run.json"
"""The file in a run's folder that says which run it is of."""
_NAME_CHARS = 80


class TensorBoardMonitor(SilentMonitor):
    """Writes event files into a folder of the run's own in ``directory``. A run that goes on from a
    checkpoint goes on in the folder that it had, in a new file that takes over after the
    checkpoint's update.

    What was told of an update is in the file when it ends. ``tell`` takes a line for the person who
    waits. Steps are updates.
    """

    def __init__(self, directory: Path, tell: Callable[[str], None] = lambda _: None) -> None:
        self.folder: Path | None = None
        self._directory, self._tell = directory, tell
        self._file: EventFile | None = None
        self._complete: Summary | None = None
        self._every, self._max_chars = 1, MOST_CHARS
        self._sampled = SampledUpdates(0)
        self._pending: tuple[int, Summary] | None = None

    def run_started(self, info: RunInfo) -> None:
        """Raises ConfigError where the folder or the file cannot be written."""
        self._every = int(lookup(info.params, "observe.every") or 1)
        self._max_chars = min(
            int(lookup(info.params, "observe.max_text_chars") or MOST_CHARS), MOST_CHARS
        )
        self._sampled = SampledUpdates(info.updates)
        try:
            self.folder, remark = folder_for(self._directory, info)
            self._begin(info, self.folder)
        except OSError as error:
            raise ConfigError(
                f"{self._directory} cannot be written for TensorBoard ({error.strerror}). Name a "
                "folder that can be written with [metrics].tensorboard_dir, or leave that key out."
            ) from error
        self._tell(f"TensorBoard reads this run in {self.folder}{remark}.")

    def trajectories(self, update: int, groups: Sequence[GroupRecord]) -> None:
        if not self._sampled.is_due(update) or (update - 1) % self._every:
            return
        if summary := self._samples("answers", groups):
            self._pending = update, summary

    def metrics(self, update: int, status: UpdateStatus, values: Mapping[str, float]) -> None:  # noqa: ARG002
        summaries = [scalars(values)]
        if self._pending is not None and self._pending[0] == update:
            summaries.append(self._pending[1])
            self._sampled.kept(update)
        self._pending = None
        self._write(update, *summaries)

    def evaluation(
        self, update: int, groups: Sequence[GroupRecord], values: Mapping[str, float]
    ) -> None:
        # Its timings have the names of the update's, which they would stand beside.
        own = {name: value for name, value in values.items() if name.startswith("eval/")}
        answers = self._samples("eval/answers", groups)
        self._write(update, scalars(own), *([answers] if answers else []))

    def run_finished(self, outcome: Outcome) -> None:
        if outcome.status == "completed" and self._complete is not None:
            self._write(outcome.updates, self._complete)
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _begin(self, info: RunInfo, folder: Path) -> None:
        done = info.resumed_from_update
        self._file = EventFile(folder, first=None if done is None else done + 1)
        now, main = time.time(), headline_of(info.algorithm)
        told = configuration(info.model, info.facts, info.params)
        self._file.write(done or 0, now, told)
        *begin, self._complete = hyperparameters(info.params, [main.name, main.held_out])
        if done is None:
            for summary in begin:
                self._file.write(0, now, summary)
        self._file.flush()

    def _samples(self, tag: str, groups: Sequence[GroupRecord]) -> Summary | None:
        answers = [
            (group.prompt.question, trajectory.answer.text, trajectory.reward)
            for group in groups
            for trajectory in group.trajectories
        ]
        return samples(tag, answers, self._max_chars) if answers else None

    def _write(self, step: int, *summaries: Summary) -> None:
        if self.folder is None:
            raise ValueError("the run has not started")
        # A file whose end may be half a record is not written to again.
        file = self._file or EventFile(self.folder)
        self._file = None
        try:
            now = time.time()
            for summary in summaries:
                file.write(step, now, summary)
            file.flush()
        except OSError:
            file.abandon()
            raise
        self._file = file


def folder_for(directory: Path, info: RunInfo) -> tuple[Path, str]:
    """The run's own folder in ``directory``, named as the run is, and what is to be said of it. A
    run that goes on gets the one that it had. Raises OSError."""
    if info.resumed_from_update is not None and (found := _had_by(directory, info)):
        _claim(found, info)
        return found, f", where it goes on after update {info.resumed_from_update}"
    name = folder_name(info.name)
    # Here, and not with the run's own folder: a link to nowhere "exists" under every number.
    directory.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        folder = directory / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        _claim(folder, info)
        return folder, "" if number == 1 else f": {name} beside it is another run's"
    raise AssertionError("numbers do not end")


def _claim(folder: Path, info: RunInfo) -> None:
    owner = {"name": info.name, "output": info.output, "run_id": info.run_id}
    (folder / OWNER).write_text(json.dumps(owner), encoding="utf-8")


def folder_name(name: str) -> str:
    """``name`` as a folder may be called anywhere."""
    return re.sub(r"[^\w.-]+", "_", name).strip("._")[:_NAME_CHARS] or "run"


def _had_by(directory: Path, info: RunInfo) -> Path | None:
    """The folder with the run's id. Of those that are older than ids are, the newest that was made
    for the same output: other runs may have had that output too."""
    found: list[tuple[bool, int, Path]] = []
    for owner in directory.glob(f"*/{OWNER}"):
        try:
            told = json.loads(owner.read_text(encoding="utf-8"))
            if not isinstance(told, dict):
                continue
            named = told.get("run_id") or ""
            if named == info.run_id if named else told.get("output") == info.output:
                found.append((bool(named), owner.stat().st_mtime_ns, owner.parent))
        except (OSError, ValueError):
            continue  # no file of ours
    return max(found)[2] if found else None
