"""Where stored configurations differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.jobs.keys import WRITTEN
from app.text import neutralise

ABSENT = "—"
_NAMES = frozenset({"run.name", *WRITTEN})
"""Keys that every run has values of its own for."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A key that runs have different values of, in the order of the runs."""

    key: str
    values: list[str]
    name: bool
    """Whether the key only names the run, or a place that it writes to."""


def differences(runs: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Difference]:
    """The keys whose values are not the same in all of the runs, each of which is its algorithm and
    its configuration; those that a run is named by come last.

    The sections of two algorithms are held against each other key by key: ``grpo/ppo.updates``.
    """
    algorithms = list(dict.fromkeys(algorithm for algorithm, _ in runs))
    section = "/".join(algorithms)
    flat = [
        {_shared(key, algorithm, section): value for key, value in _flat(params).items()}
        for algorithm, params in runs
    ]
    found = []
    for key in dict.fromkeys(key for values in flat for key in values):
        told = [written(values[key]) if key in values else ABSENT for values in flat]
        if len(set(told)) > 1:
            having = {name for (name, _), values in zip(runs, flat, strict=True) if key in values}
            own = _shared(key, section, "".join(having)) if len(having) == 1 else key
            found.append(Difference(own, told, key in _NAMES))
    return sorted(found, key=lambda difference: difference.name)


def _shared(key: str, section: str, other: str) -> str:
    """``key`` with the name ``other`` in the place of its section, if that is ``section``."""
    name, dot, rest = key.partition(".")
    return other + dot + rest if name == section else key


def _flat(params: Mapping[str, Any], name: str = "") -> dict[str, Any]:
    """Dotted keys with their values; what is unset is left out, so that a section that is not there
    and one that is differ only in keys that have values."""
    found: dict[str, Any] = {}
    for key, value in params.items():
        dotted = f"{name}.{key}" if name else key
        if isinstance(value, Mapping):
            found |= _flat(value, dotted)
        elif value is not None:
            found[dotted] = value
    return found


def written(value: object) -> str:
    """A value as in a TOML file, fit to be shown."""
    if isinstance(value, str) and "\n" in value:
        return neutralise(value, keep_newlines=True)
    return neutralise(json.dumps(value, ensure_ascii=False))
