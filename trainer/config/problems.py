"""Turns what pydantic finds wrong into paragraphs that a person can act on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from trainer.config.base import Section
from trainer.config.lines import KeyPath, Origin
from trainer.config.models import CONFIGS
from trainer.config.schema import allowed, is_textual, literal_words, section_models, sections
from trainer.config.suggest import unknown_key

_SECRET = re.compile(r"(^|_)(api_?key|key|token|secret|password|authorization)(_env)?$", re.I)
_MEANT = re.compile(r"did you mean \[?([^]?]+)\]?\?$")
_LONGEST_VALUE = 60


@dataclass(frozen=True, slots=True)
class Problem:
    """A key path and the rest of the sentence that it starts."""

    path: KeyPath
    message: str


def paragraphs(
    error: ValidationError, config: type[Section], algorithm: str | None, origin: Origin
) -> list[str]:
    """One paragraph for each problem, in the order of the file's lines.

    ``algorithm`` is none when the file does not name a known one; then nothing is said about the
    sections of algorithms, which cannot be judged.
    """
    found: list[Problem] = []
    for details in error.errors(include_url=False):
        for problem in _problems(details, config, algorithm or ""):
            of_an_algorithm = len(problem.path) == 1 and problem.path[0] in CONFIGS
            if algorithm is not None or not of_an_algorithm:
                found.append(problem)
    found = _without_consequences(found)
    found.sort(key=lambda problem: origin.lines.line(problem.path) or 0)
    return [paragraph(problem.path, problem.message, origin) for problem in found]


def _without_consequences(found: Sequence[Problem]) -> list[Problem]:
    """A required key that is there under a misspelt name is said to be missing only by that name:
    one mistake, one paragraph."""
    meant = {match[1] for problem in found if (match := _MEANT.search(problem.message))}
    return [
        problem
        for problem in found
        if not (
            problem.message.startswith(("is required", "is missing"))
            and ".".join(problem.path) in meant
        )
    ]


def paragraph(path: KeyPath, message: str, origin: Origin) -> str:
    """``file:line: key = value message.``"""
    mark = origin.lines.marks.get(path)
    subject = ".".join(path)
    if mark is not None and path not in origin.flags:
        if mark.value is None:
            subject = f"[{subject}]"
        elif not _is_secret(path, mark.value):
            subject += f" = {_short(mark.value)}"
    stop = "" if message.endswith("?") else "."
    return f"{origin.where(path)}: {subject} {message}{stop}"


def _problems(details: ErrorDetails, config: type[Section], algorithm: str) -> Iterator[Problem]:
    path = _key_path(details)
    kind, context = details["type"], details.get("ctx", {})
    if kind == "rules":
        for rule in context["broken"]:
            yield Problem(path + tuple(rule.key.split(".")), rule.message)
    elif kind == "extra_forbidden":
        yield Problem(path, _unknown(config, algorithm, path))
    elif kind == "value_error":
        yield Problem(path, str(context["error"]))
    elif kind in ("union_tag_not_found", "union_tag_invalid"):
        yield Problem((*path, "type"), 'is required, and must be "ruler" or "command"')
    elif kind in ("model_type", "model_attributes_type"):
        yield Problem(path, f"must be one section, written as [{'.'.join(path)}]")
    elif kind == "missing":
        yield Problem(path, _missing(config, path))
    elif kind != "default_factory_not_called":  # it depends on a key that has a problem itself
        yield Problem(path, _refused(_field(config, path), details["input"]))


def _key_path(details: ErrorDetails) -> KeyPath:
    """The keys that lead to a problem, without the judge's type that pydantic puts in between."""
    path = tuple(str(part) for part in details["loc"])
    if path[:2] == ("grpo", "judge"):
        return path[:2] + path[3:]
    return path


def _unknown(config: type[Section], algorithm: str, path: KeyPath) -> str:
    if path[:2] == ("grpo", "judge") and _SECRET.search(path[-1]):
        return (
            "is refused, because a key does not belong in a file: put it in an environment "
            "variable, and name the variable with grpo.judge.api_key_env"
        )
    return unknown_key(config, algorithm, path)


def _missing(config: type[Section], path: KeyPath) -> str:
    field = _field(config, path)
    below = section_models(field)
    if below:
        needed = [key for key, inner in below[0].model_fields.items() if inner.is_required()]
        return f"is missing: add the section [{'.'.join(path)}] with {', '.join(needed)}"
    purpose = " ".join((field.description or "").split())
    return f"is required. It takes {allowed(field)}: {purpose[:1].lower()}{purpose[1:].rstrip('.')}"


def _refused(field: FieldInfo, value: object) -> str:
    message = f"must be {allowed(field)}"
    if isinstance(value, str):
        for near in get_close_matches(value.lower(), literal_words(field), n=1):
            return f'{message}; did you mean "{near}"?'
    if isinstance(value, str) and not is_textual(field):
        return f"{message}, without quotes"
    return message


def _field(config: type[Section], path: KeyPath) -> FieldInfo:
    for info in sections(config):
        if info.name == ".".join(path[:-1]) and path[-1] in info.model.model_fields:
            return info.model.model_fields[path[-1]]
    raise KeyError(".".join(path))


def _is_secret(path: KeyPath, value: str) -> bool:
    return bool(_SECRET.search(path[-1])) or (
        path[-1] == "base_url" and bool({"@", "?"} & {*value})
    )


def _short(value: str) -> str:
    first, _, rest = value.partition("\n")
    if rest or len(first) > _LONGEST_VALUE:
        return first[:_LONGEST_VALUE].rstrip() + "…"
    return first
