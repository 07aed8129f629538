"""Event files, which TensorBoard reads: one file, and the summaries that a run is told in.

TensorBoard takes all event files of a folder for one run and reads them in the order of their
names.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import RecordWriter
from tensorboardX.summary import hparams as _hparams
from tensorboardX.summary import text as _text

PATTERN = "events.out.tfevents.*"
_NUMBER = re.compile(r"events\.out\.tfevents\.(\d+)\.")
_VERSION = "brain.Event:2"  # with it, readers heed where a file says that it takes over
MOST_CHARS = 2000
"""Of a sampled text."""
_SAMPLES_IN_A_RUN = 10  # as many as TensorBoard keeps of a text


class EventFile:
    """A new file in ``folder``, whose name sorts behind those that are there.

    With ``first`` it takes over from that step on: of the files before it, readers drop what lies
    at that step or later. All calls raise OSError.
    """

    def __init__(self, folder: Path, *, first: int | None = None) -> None:
        self.path = _new_file(folder)
        # The library's class that writes through a thread of its own is not used: it dies without a
        # word where a disk is full, and from then on whoever writes waits for it.
        self._records = RecordWriter(str(self.path))
        try:
            self._put(Event(wall_time=time.time(), file_version=_VERSION))
            if first is not None:
                log = SessionLog(status=SessionLog.START)
                self._put(Event(wall_time=time.time(), step=first, session_log=log))
            self.flush()
        except OSError:
            self.abandon()
            self.path.unlink(missing_ok=True)  # on a full disk each attempt would leave one
            raise

    def write(self, step: int, at: float, summary: Summary) -> None:
        """``at`` is in Unix seconds."""
        self._put(Event(wall_time=at, step=step, summary=summary))

    def flush(self) -> None:
        """Hand what was written to the system, so that a kill does not take it."""
        # The library's own call waits for the disk, and the trainer would wait with it.
        self._records._writer.flush()

    def close(self) -> None:
        try:
            self._records.flush()  # to the disk
        finally:
            self._records.close()

    def abandon(self) -> None:
        """Close the file after an error, whatever becomes of its end."""
        with suppress(OSError):
            self._records.close()

    def _put(self, event: Event) -> None:
        self._records.write(event.SerializeToString())


def scalars(values: Mapping[str, float | None]) -> Summary:
    """``values`` by name, in single precision as event files have them; None becomes NaN."""
    return Summary(
        value=[
            Summary.Value(tag=_valid(name), simple_value=float("nan") if value is None else value)
            for name, value in values.items()
        ]
    )


def words(tag: str, markdown: str) -> Summary:
    """A text, which TensorBoard renders."""
    summary: Summary = _text(_valid(tag), _valid(markdown))
    return summary


def configuration(model: str, facts: Mapping[str, str], params: Mapping[str, Any]) -> Summary:
    """What a run was told, as a text."""
    told = {"model": model, "facts": dict(facts), "params": dict(params)}
    return words("config", fenced(json.dumps(told, indent=2, ensure_ascii=False, default=str)))


def hyperparameters(
    params: Mapping[str, Any], measured: Sequence[str]
) -> tuple[Summary, Summary, Summary]:
    """The configuration as TensorBoard compares it over runs, beside the metrics ``measured``: what
    is written as a run starts, in two summaries, and what is written when it is complete."""
    first, second, last = _hparams(_flat(params), {_valid(name): 0.0 for name in measured})
    return first, second, last


def samples(
    tag: str, answers: Sequence[tuple[str, str, float]], max_chars: int = MOST_CHARS
) -> Summary:
    """The best and the worst of ``answers``, which are (prompt, answer, reward). Of each text there
    are ``max_chars`` at most."""
    best = max(answers, key=lambda answer: answer[2])
    worst = min(answers, key=lambda answer: answer[2])
    chosen = [("only" if len(answers) == 1 else "best", best)]
    chosen += [("worst", worst)] if worst[2] < best[2] else []
    parts = []
    for label, (prompt, answer, reward) in chosen:
        shown, asked = _cut(answer, max_chars), _cut(prompt, max_chars)
        parts.append(f"**{label} answer**, reward {reward:.4g}\n\n{fenced(shown)}")
        parts.append(f"to\n\n{fenced(asked)}")
    return words(tag, "\n\n".join(parts))


class SampledUpdates:
    """The updates whose answers are kept, some ten in a run of so many ``planned`` ones."""

    def __init__(self, planned: int) -> None:
        self._step, self._next = max(1, planned // _SAMPLES_IN_A_RUN), 0

    def is_due(self, update: int) -> bool:
        return update >= self._next

    def kept(self, update: int) -> None:
        self._next = update + self._step


def fenced(text: str) -> str:
    """``text`` as Markdown that shows it as it is, whatever it holds."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


def _cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[:chars]}…"


def _valid(text: str) -> str:
    """A lone surrogate, which protocol buffers refuse, becomes "?"."""
    return text.encode(errors="replace").decode()


def _flat(params: Mapping[str, Any], before: str = "") -> dict[str, bool | int | float | str]:
    """Dotted keys with the values that are set; what is no number and no text is written as
    JSON."""
    found: dict[str, bool | int | float | str] = {}
    for key, value in params.items():
        name = _valid(f"{before}{key}")
        if isinstance(value, Mapping):
            found |= _flat(value, f"{name}.")
        elif isinstance(value, bool | int | float):
            found[name] = value
        elif isinstance(value, str):
            found[name] = _valid(value)
        elif value is not None:
            found[name] = _valid(json.dumps(value, ensure_ascii=False, default=str))
    return found


def _new_file(folder: Path) -> Path:
    """Made here, so that no two processes write to one."""
    names = (_NUMBER.match(path.name) for path in folder.iterdir())
    # Not the time alone: a clock may have been set back, and two files may be of one second.
    number = max([int(time.time()), *(int(name[1]) + 1 for name in names if name)])
    while True:
        path = folder / f"events.out.tfevents.{number:010d}.retrograd"
        try:
            path.open("xb").close()
        except FileExistsError:
            number += 1
        else:
            return path
