"""What a reader looks at, as it stands in the address of the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args
from urllib.parse import urlencode

from fastapi import HTTPException, Request

from app.store.queries.answers import Filters
from app.store.queries.trajectories import (
    ANSWER_ORDERS,
    GROUP_ORDERS,
    KINDS,
    AnswerOrder,
    GroupOrder,
    Kind,
)
from trainer.health.audit import AuditFlag
from trainer.monitor.protocol import SkipReason

SKIPS = tuple(reason for reason in get_args(SkipReason) if reason != "evaluation")
FLAGS: tuple[str, ...] = get_args(AuditFlag)
SCOPES = ("update", "run")
_LONGEST_QUERY = 400
_LARGEST = 2**31
_LARGEST_ID = 2**53


@dataclass(frozen=True, slots=True)
class State:
    """``update`` None is the latest one, as it always is while ``follow`` is on; ``group`` None is
    the first of the list. ``since`` is where the list of groups begins, ``after`` where a page of
    answers does, ``before`` one of hits. ``marked`` is the answer that another is to be compared
    with, ``against`` that other one. ``full`` is an answer whose whole text is shown."""

    run_id: int
    update: int | None = None
    group: int | None = None
    kind: Kind = "train"
    sort: GroupOrder = "order"
    by: AnswerOrder = "reward"
    low: float | None = None
    high: float | None = None
    trained: bool = False
    truncated: bool = False
    skip: str | None = None
    audit: str | None = None
    scope: str = "update"
    since: int = 0
    after: str | None = None
    q: str = ""
    before: int | None = None
    marked: int | None = None
    against: int | None = None
    full: int | None = None
    follow: bool = False

    @property
    def filters(self) -> Filters:
        return Filters(self.low, self.high, self.trained, self.truncated, self.skip, self.audit)

    @property
    def listing(self) -> bool:
        """Whether answers are listed wherever they are, rather than one group's."""
        return self.filters.on or self.scope == "run"

    def url(self, **changes: Any) -> str:  # noqa: ANN401 - any field's
        """The address with ``changes``. What depends on what has changed goes: another update has
        another list of groups, other filters another list of answers."""
        return self._address("trajectories", changes)

    def file(self, ending: str, **changes: Any) -> str:  # noqa: ANN401
        """The address of the same answers as a file."""
        kept = {"q": "", "marked": None, "against": None, "full": None, "follow": False}
        return self._address(f"trajectories.{ending}", kept | changes)

    def cleared(self) -> str:
        """The address without filters."""
        nothing = dict.fromkeys(("low", "high", "skip", "audit"))
        return self.url(trained=False, truncated=False, scope="update", **nothing)

    def found(self, **place: Any) -> str:  # noqa: ANN401
        """The address of a place that a search has led to, whatever filters there are."""
        filters = {name: getattr(_START, name) for name in _FILTERS - {"by"}}
        return self.url(**filters, **place)

    def fields(self, *without: str) -> list[tuple[str, str]]:
        """What a form must send along to stay where it is; it has the fields ``without`` itself."""
        places = _forgotten(dict.fromkeys(without))
        own = {_NAMES[field] for field in without}
        return [(k, v) for k, v in _query(replace(self, **places)) if k not in own]

    def _address(self, page: str, changes: dict[str, Any]) -> str:
        query = urlencode(_query(replace(self, **(_forgotten(changes) | changes))))
        return f"/runs/{self.run_id}/{page}" + (f"?{query}" if query else "")


_START = State(0)
_SHORT = {"marked": "compare", "against": "with", "low": "min", "high": "max"}
_NAMES = {field: _SHORT.get(field, field) for field in asdict(_START) if field != "run_id"}
_FILTERS = {"low", "high", "trained", "truncated", "skip", "audit", "scope", "by"}
"""A search looks at all answers: it and a list of some of them end each other."""


def _forgotten(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that no longer mean anything after ``changes``."""
    gone: dict[str, Any] = {"full": None}
    if changes.keys() & (_FILTERS | {"kind", "update", "group", "sort"}):
        gone |= {"q": "", "before": None}
    if changes.keys() & {"kind"}:
        gone |= {"update": None}
    if changes.get("kind") == "evaluation":  # nothing of it is trained on, so nothing has these
        gone |= {"trained": False, "skip": None}
    if changes.keys() & {"kind", "update"}:
        gone |= {"group": None, "since": 0, "after": None, "against": None, "follow": False}
    if changes.keys() & {"group", "sort"}:
        gone |= {"against": None, "follow": False}
    if changes.keys() & _FILTERS:
        gone |= {"after": None, "against": None, "follow": False}
    if changes.get("q"):
        gone |= {name: getattr(_START, name) for name in _FILTERS} | {"against": None}
    if "q" in changes:
        gone |= {"before": None}
    return gone


def _query(state: State) -> list[tuple[str, str]]:
    pairs = []
    for field, name in _NAMES.items():
        value = getattr(state, field)
        followed = field == "update" and state.follow
        if value != getattr(_START, field) and not followed:
            pairs.append((name, "1" if value is True else str(value)))
    return pairs


def state_of(run_id: int, request: Request) -> State:
    """The state in the request's address. An empty field of a form counts as none. Raises
    HTTPException (400), which names the field."""
    given = request.query_params
    found = {}
    for field, name in _NAMES.items():
        words = given.get(name, "").strip()
        if words:
            try:
                found[field] = _READ[field](words)
            except ValueError as error:
                raise HTTPException(400, f"{name} in the address: {error}.") from None
    return State(run_id, **found)


def _id(words: str) -> int:
    return _whole(words, _LARGEST_ID)


def _whole(words: str, largest: int = _LARGEST) -> int:
    if not words.removeprefix("-").isascii() or not words.removeprefix("-").isdigit():
        raise ValueError(f"{words[:40]!r} is no whole number")
    number = int(words[:20])
    if not 0 <= number < largest:
        raise ValueError(f"{words[:40]!r} is out of range")
    return number


def _number(words: str) -> float:
    try:
        number = float(words)
    except ValueError:
        raise ValueError(f"{words[:40]!r} is no number") from None
    if not math.isfinite(number):
        raise ValueError(f"{words[:40]!r} is not finite")
    return number


def _switch(words: str) -> bool:
    return _one_of("1", "0")(words) == "1"


def _one_of(*choices: str) -> Callable[[str], str]:
    def read(words: str) -> str:
        if words not in choices:
            raise ValueError(f"{words[:40]!r} is none of {', '.join(choices)}")
        return words

    return read


def _cursor(words: str) -> str:
    value, _, number = words.partition("_")
    _number(value)
    _id(number)
    return words


_READ: Mapping[str, Callable[[str], Any]] = {
    "update": _whole,
    "group": _whole,
    "kind": _one_of(*KINDS),
    "sort": _one_of(*GROUP_ORDERS),
    "by": _one_of(*ANSWER_ORDERS),
    "low": _number,
    "high": _number,
    "trained": _switch,
    "truncated": _switch,
    "skip": _one_of(*SKIPS),
    "audit": _one_of("any", *FLAGS),
    "scope": _one_of(*SCOPES),
    "since": _whole,
    "after": _cursor,
    "q": lambda words: words[:_LONGEST_QUERY],
    "before": _id,
    "marked": _id,
    "against": _id,
    "full": _id,
    "follow": _switch,
}
