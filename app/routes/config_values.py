"""A stored configuration put in order for the eye: its sections, what was chosen in them and what
was left at its default, and where two of them differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

from app.jobs.keys import WRITTEN
from app.text import neutralise
from trainer.config.models import CONFIGS
from trainer.config.schema import SectionInfo, section_models, sections, unset_meaning

State = Literal["chosen", "default"]

ABSENT = "—"
_NAMES = frozenset({"run.name", *WRITTEN})
"""Keys that every run has values of its own for."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A key. ``value`` and ``default`` are written as in a TOML file; a key that has to be given,
    or is unset by default, has no default. ``means`` says what the key does."""

    key: str
    value: str
    state: State
    default: str | None
    means: str


@dataclass(frozen=True, slots=True)
class Table:
    """A section of the file, with its dotted name."""

    name: str
    settings: list[Setting]
    chosen: int


@dataclass(frozen=True, slots=True)
class Difference:
    """A key that runs have different values of, in the order of the runs."""

    key: str
    values: list[str]
    name: bool
    """Whether the key only names the run, or a place that it writes to."""


def tables_of(algorithm: str, params: Mapping[str, Any]) -> list[Table]:
    """The sections that are in use, in the order of the documentation; what this retrograd does not
    know of stands at the end."""
    values = _sections_in(params)
    known = _known(algorithm, values)
    names = [name for name in known if name in values]
    names += [name for name in values if name not in known]
    return [_table(name, values[name], known.get(name, {})) for name in names]


def unused(algorithm: str, params: Mapping[str, Any]) -> list[str]:
    """The sections that the file may have and that the run does without."""
    values = _sections_in(params)
    names = (info.name for info in _schema(algorithm) if info.keys)
    return [name for name in dict.fromkeys(names) if name not in values]


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
        told = [_written(values[key]) if key in values else ABSENT for values in flat]
        if len(set(told)) > 1:
            having = {name for (name, _), values in zip(runs, flat, strict=True) if key in values}
            own = _shared(key, section, "".join(having)) if len(having) == 1 else key
            found.append(Difference(own, told, key in _NAMES))
    return sorted(found, key=lambda difference: difference.name)


def _shared(key: str, section: str, other: str) -> str:
    """``key`` with the name ``other`` in the place of its section, if that is ``section``."""
    name, dot, rest = key.partition(".")
    return other + dot + rest if name == section else key


def _sections_in(params: Mapping[str, Any], name: str = "") -> dict[str, dict[str, Any]]:
    """The values of each section, without the sections below it and those that are unset."""
    own = {key: value for key, value in params.items() if not isinstance(value, Mapping)}
    found = {name: own} if name and own else {}
    for key, value in params.items():
        if isinstance(value, Mapping):
            found |= _sections_in(value, f"{name}.{key}" if name else key)
    return found


def _schema(algorithm: str) -> list[SectionInfo]:
    model = CONFIGS.get(algorithm)
    return list(sections(model)) if model else []


def _known(
    algorithm: str, values: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, FieldInfo]]:
    """The keys of each section. Where a name stands for several kinds of section (a judge), those
    of the kind that has the run's keys."""
    best: dict[str, dict[str, FieldInfo]] = {}
    for info in _schema(algorithm):
        keys = info.model.model_fields
        given = values.get(info.name, {}).keys()
        if info.name and len(given & keys.keys()) > len(given & best.get(info.name, {}).keys()):
            best[info.name] = keys
    return best


def _table(name: str, values: Mapping[str, Any], fields: Mapping[str, FieldInfo]) -> Table:
    before = _typed(values, fields)
    order = [key for key in fields if key in values] + [key for key in values if key not in fields]
    settings = [
        _setting(key, values[key], fields.get(key), before)
        for key in order
        # A section that is not there is null among the values.
        if not (values[key] is None and key in fields and section_models(fields[key]))
    ]
    return Table(name, settings, sum(setting.state == "chosen" for setting in settings))


def _typed(values: Mapping[str, Any], fields: Mapping[str, FieldInfo]) -> dict[str, Any]:
    """The values as the configuration has them: paths are text in their stored form."""
    return {
        key: Path(value)
        if isinstance(value, str) and key in fields and fields[key].annotation is Path
        else value
        for key, value in values.items()
    }


def _setting(key: str, value: object, field: FieldInfo | None, before: dict[str, Any]) -> Setting:
    """``before`` are the typed values of the section, which a default may follow from."""
    default = field and field.get_default(call_default_factory=True, validated_data=before)
    if field is None or default is PydanticUndefined:
        means = field.description if field else None
        return Setting(key, _written(value), "chosen", None, _line(means))
    plain = to_jsonable_python(default)
    unset = f"unset: {unset_meaning(field)}"
    return Setting(
        key=key,
        value=unset if value is None else _written(value),
        state="default" if value == plain else "chosen",
        default=None if plain is None else _written(plain),
        means=_line(field.description),
    )


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


def _written(value: object) -> str:
    if isinstance(value, str) and "\n" in value:
        return neutralise(value, keep_newlines=True)
    return neutralise(json.dumps(value, ensure_ascii=False))


def _line(text: str | None) -> str:
    return " ".join((text or "").split()).replace("`", "")
