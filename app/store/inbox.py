"""What a monitor was told and the database does not have yet: a bounded queue between the trainer's
thread, which never waits, and the thread that writes."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trainer.monitor import Event, GroupRecord, Outcome, Trajectory, UpdateStatus

Kind = Literal["train", "evaluation"]
_BYTES_FOR_ANSWERS = 128 << 20
_BYTES_IN_ALL = 160 << 20  # numbers and events still find room where answers do not
_BYTES_A_ROW = 300
"""What a row takes beside its texts and arrays."""
_BYTES_A_PART = 100


@dataclass(frozen=True, slots=True)
class GroupTold:
    at: float
    update: int
    kind: Kind
    record: GroupRecord
    with_text: bool

    @property
    def rows(self) -> int:
        return 1 + len(self.record.trajectories)

    @property
    def size(self) -> int:
        # Of the prompt there is one copy, which the trainer holds anyway.
        return sum(map(_bytes_of, self.record.trajectories)) + _BYTES_A_ROW


@dataclass(frozen=True, slots=True)
class ValuesTold:
    """The end of an update, or of an evaluation after it."""

    at: float
    update: int
    kind: Kind
    status: UpdateStatus | Literal["evaluation"]
    values: Mapping[str, float]

    @property
    def rows(self) -> int:
        return 1 + len(self.values)

    @property
    def size(self) -> int:
        return self.rows * _BYTES_A_ROW


@dataclass(frozen=True, slots=True)
class EventTold:
    at: float
    event: Event

    rows: int = 1

    @property
    def size(self) -> int:
        return sys.getsizeof(self.event.message) + _BYTES_A_ROW


@dataclass(frozen=True, slots=True)
class RunTold:
    """Columns of the run itself."""

    at: float
    values: Mapping[str, Any]

    rows: int = 0
    size: int = _BYTES_A_ROW


@dataclass(frozen=True, slots=True)
class EndTold:
    at: float
    outcome: Outcome

    rows: int = 0
    size: int = 0


Told = GroupTold | ValuesTold | EventTold | RunTold | EndTold


class Inbox:
    """First in, first out. ``lost`` counts the rows that found no room, or were given up."""

    def __init__(self, for_answers: int = _BYTES_FOR_ANSWERS, in_all: int = _BYTES_IN_ALL) -> None:
        self._for_answers, self._in_all = for_answers, in_all
        self._waiting: deque[tuple[Told, int]] = deque()
        self._size = 0
        self._told = 0
        self._settled = 0
        self._closed = False
        self._lost = 0
        self._changed = threading.Condition()

    @property
    def lost(self) -> int:
        return self._lost

    @property
    def is_closed(self) -> bool:
        return self._closed

    def put(self, told: Told) -> None:
        """Take ``told`` if there is room for it. Never waits."""
        size, rows = told.size, told.rows
        with self._changed:
            room = self._for_answers if isinstance(told, GroupTold) else self._in_all
            if self._size + size > room and not isinstance(told, EndTold):
                self._lost += rows
                return
            self._waiting.append((told, size))
            self._size += size
            self._told += 1
            self._changed.notify_all()

    def take(self, *, rows: int, size: int, wait: float) -> list[Told]:
        """What waits, up to about so many rows and bytes; nothing after ``wait`` seconds."""
        taken: list[Told] = []
        with self._changed:
            if not self._waiting and not self._closed:
                self._changed.wait(wait)
            while self._waiting and rows > 0 and size > 0:
                told, its = self._waiting.popleft()
                taken.append(told)
                rows -= told.rows
                size -= its
                self._size -= its
        return taken

    def settle(self, count: int) -> None:
        """``count`` of what was taken is in the database, or given up."""
        with self._changed:
            self._settled += count
            self._changed.notify_all()

    def lose(self, rows: int) -> None:
        with self._changed:
            self._lost += rows

    def close(self) -> None:
        """Nothing comes any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait_until_settled(self, seconds: float) -> bool:
        """Wait for all that was put so far; whether it is settled."""
        deadline = time.monotonic() + seconds
        with self._changed:
            wanted = self._told
            while self._settled < wanted:
                if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    return self._settled >= wanted
        return True


def _bytes_of(trajectory: Trajectory) -> int:
    """What it holds in memory, its text also where that is not to be stored."""
    answer = trajectory.answer
    return (
        _BYTES_A_ROW
        + sys.getsizeof(answer.text)
        + answer.tokens.nbytes
        + answer.logprobs.nbytes
        + sys.getsizeof(trajectory.judge_words)
        + _BYTES_A_PART * len(trajectory.parts)
    )
