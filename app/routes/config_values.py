"""A stored configuration put in order for the eye: its sections, what was chosen in them and what
was left at its default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

from app.jobs.differences import written
from trainer.config.models import CONFIGS
from trainer.config.schema import SectionInfo, section_models, sections, unset_meaning

State = Literal["chosen", "default"]


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
        return Setting(key, written(value), "chosen", None, _line(means))
    plain = to_jsonable_python(default)
    unset = f"unset: {unset_meaning(field)}"
    return Setting(
        key=key,
        value=unset if value is None else written(value),
        state="default" if value == plain else "chosen",
        default=None if plain is None else written(plain),
        means=_line(field.description),
    )


def _line(text: str | None) -> str:
    return " ".join((text or "").split()).replace("`", "")
