"""The configuration's shape, read off the models: for error messages and for the reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from trainer.config.base import Checked, Section, Unset


@dataclass(frozen=True, slots=True)
class SectionInfo:
    """A section's dotted name (empty for the file itself), its model, and whether a file may leave
    it out. The two kinds of judge share one name."""

    name: str
    model: type[Section]
    required: bool

    @property
    def keys(self) -> dict[str, FieldInfo]:
        """The keys that hold a value, in order; the sections below are left out."""
        return {
            key: field
            for key, field in self.model.model_fields.items()
            if not section_models(field)
        }


def sections(model: type[Section], name: str = "", required: bool = True) -> Iterator[SectionInfo]:
    """``model`` and all sections below it, in the order of their fields."""
    yield SectionInfo(name, model, required)
    for key, field in model.model_fields.items():
        for below in section_models(field):
            dotted = f"{name}.{key}" if name else key
            yield from sections(below, dotted, field.is_required())


def section_models(field: FieldInfo) -> list[type[Section]]:
    """The models of the section that ``field`` is; none for a field that holds a value."""
    return [
        kind for kind in _flat(field)[0] if isinstance(kind, type) and issubclass(kind, Section)
    ]


def unset_meaning(field: FieldInfo) -> str:
    """What it means that a key without a default is absent."""
    return next((mark.meaning for mark in _flat(field)[1] if isinstance(mark, Unset)), "none")


def allowed(field: FieldInfo) -> str:
    """The values that ``field`` takes, in words that follow "must be"."""
    kinds, marks = _flat(field)
    for mark in marks:
        if isinstance(mark, Checked):
            return mark.allowed
    words = literal_words(field)
    if words:
        quoted = [f'"{word}"' for word in words]
        return " or ".join(filter(None, (", ".join(quoted[:-1]), quoted[-1])))
    if bool in kinds:
        return "true or false"
    if int in kinds:
        return "an integer" + _span(marks)
    if float in kinds:
        return "a number" + _span(marks)
    raise TypeError(f"no words for {field.annotation!r}")


def literal_words(field: FieldInfo) -> list[str]:
    """The words that ``field`` chooses from, if it does."""
    kinds, _ = _flat(field)
    return [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]


def is_textual(field: FieldInfo) -> bool:
    """Whether some text is among the values that ``field`` takes."""
    kinds, _ = _flat(field)
    return any(kind in (str, Path) or get_origin(kind) is Literal for kind in kinds)


def _span(marks: list[object]) -> str:
    low = high = ""
    closed: dict[str, Any] = {}
    for mark in marks:
        if isinstance(mark, Ge):
            low, closed["low"] = f"at least {mark.ge}", mark.ge
        elif isinstance(mark, Gt):
            low = f"above {mark.gt}"
        elif isinstance(mark, Le):
            high, closed["high"] = f"at most {mark.le}", mark.le
        elif isinstance(mark, Lt):
            high = f"below {mark.lt}"
    if len(closed) == 2:
        return f" from {closed['low']} to {closed['high']}"
    bounds = [bound for bound in (low, high) if bound]
    if not bounds:
        return ""
    return (" of " if bounds[0].startswith("at") else " ") + " and ".join(bounds)


def _flat(field: FieldInfo) -> tuple[list[Any], list[object]]:
    """The plain types in a field's annotation, and every mark on it or inside it."""
    kinds: list[Any] = []
    marks: list[object] = list(field.metadata)

    def walk(annotation: Any) -> None:  # noqa: ANN401  an annotation can be anything
        origin = get_origin(annotation)
        if origin is Annotated:
            inner, *more = get_args(annotation)
            marks.extend(more)
            walk(inner)
        elif origin in (Union, UnionType):
            for part in get_args(annotation):
                walk(part)
        elif annotation is not type(None):
            kinds.append(annotation)

    walk(field.annotation)
    return kinds, marks
