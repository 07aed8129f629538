"""``observe.jsonl``: everything about a run, one JSON object a line, only ever appended to."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainer.errors import ConfigError
from trainer.monitor.base import SilentMonitor
from trainer.monitor.protocol import GroupRecord, Outcome, RunInfo, UpdateStatus
from trainer.monitor.records import (
    Record,
    evaluation_record,
    prompt_record,
    rollout_record,
    run_record,
    update_record,
)

FILE_NAME = "observe.jsonl"


class JsonlMonitor(SilentMonitor):
    """Writes ``folder/observe.jsonl``; a further run into the same folder adds to the file.

    The texts of answers are kept for updates 1, 1 + ``every``, 1 + 2·``every`` and so on; all else
    about an answer is kept always. ``max_text_chars`` cuts stored texts (0 keeps them whole).
    The records of an update are in the file when the update ends. Where a run ends between an
    update's answers and its metrics, those answers are kept and say that they were not trained on.
    """

    def __init__(self, folder: Path, every: int = 1, max_text_chars: int = 0) -> None:
        self.path = folder / FILE_NAME
        self._every = every
        self._max_text_chars = max_text_chars
        self._pending: list[Record] = []
        self._known_prompts: set[str] = set()

    def run_started(self, info: RunInfo) -> None:
        """Raises ``ConfigError`` where the folder or the file cannot be written."""
        self._known_prompts.clear()
        self._pending.append(run_record(info))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._flush()
        except OSError as error:
            raise ConfigError(
                f"{self.path} cannot be written ({error.strerror}). Name a folder that can be "
                "written with [observe].directory, or leave that key out."
            ) from error

    def trajectories(self, update: int, groups: Sequence[GroupRecord]) -> None:
        self._keep(update, groups, with_text=(update - 1) % self._every == 0)

    def evaluation(
        self, update: int, groups: Sequence[GroupRecord], values: Mapping[str, float]
    ) -> None:
        self._keep(update, groups, with_text=True)
        self._pending.append(evaluation_record(update, values))
        self._flush()

    def _keep(self, update: int, groups: Sequence[GroupRecord], *, with_text: bool) -> None:
        for group in groups:
            self._write_prompt_once(group)
            for trajectory in group.trajectories:
                self._pending.append(
                    rollout_record(
                        update,
                        group.group,
                        group.prompt.key,
                        trajectory,
                        with_text=with_text,
                        max_text_chars=self._max_text_chars,
                    )
                )

    def metrics(self, update: int, status: UpdateStatus, values: Mapping[str, float]) -> None:
        self._pending.append(update_record(update, status, values))
        self._flush()

    def run_finished(self, outcome: Outcome) -> None:  # noqa: ARG002 - the records say it all
        # What waits here belongs to an update that did not end: no adapter was trained on it.
        self._pending = [
            record | {"trained": False, "skip_reason": "update_skipped"}
            if record.get("trained")
            else record
            for record in self._pending
        ]
        self._flush()

    def _write_prompt_once(self, group: GroupRecord) -> None:
        key = group.prompt.key
        if key not in self._known_prompts:
            self._pending.append(prompt_record(group.prompt, self._max_text_chars))
            self._known_prompts.add(key)

    def _flush(self) -> None:
        records, self._pending = self._pending, []
        if not records:
            return
        try:
            _append(self.path, b"".join(map(_line, records)))
        except OSError as error:
            self._known_prompts.clear()  # those lost here come again with their next answers
            if error.filename is None and error.errno is not None:  # as where the disk is full
                raise OSError(error.errno, error.strerror, str(self.path)) from error
            raise


def _line(record: Record) -> bytes:
    text = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # A lone surrogate has no UTF-8 form; it becomes "?" rather than a line nobody can read.
    return text.encode("utf-8", errors="replace") + b"\n"


def _append(path: Path, lines: bytes) -> None:
    with path.open("ab+") as file:
        if file.seek(0, os.SEEK_END) > 0:
            file.seek(-1, os.SEEK_END)
            # A kill or a full disk may have left half a line, which no record may join.
            if file.read(1) != b"\n":
                lines = b"\n" + lines
        file.write(lines)
