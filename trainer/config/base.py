"""What every section of the configuration shares: strictness, rules between keys, value types."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationInfo, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from trainer.config.lines import Origin

Algorithm = Literal["grpo", "ppo", "sft"]
LARGEST_SEED = 2**63 - 1


class NotAllowed(ValueError):  # noqa: N818  a verdict on a value, not a failure
    """A value that a check refuses; the message continues the sentence that the key starts."""


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """A rule between keys that does not hold. ``key`` is dotted, below the section that raises it;
    ``message`` continues the sentence that the key starts, and says what to do."""

    key: str
    message: str


class Section(BaseModel):
    """A table of the TOML file: frozen, no unknown key, no silent conversion of types."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    def broken_rules(self) -> Iterator[BrokenRule]:
        """The rules between this section's keys that do not hold."""
        yield from ()

    def given(self, key: str) -> bool:
        """Whether the file (or an override) sets ``key`` itself."""
        return key in self.model_fields_set

    @model_validator(mode="after")
    def _hold_rules(self) -> Self:
        broken = tuple(self.broken_rules())
        if broken:
            text = "; ".join(f"{rule.key} {rule.message}" for rule in broken)
            raise PydanticCustomError("rules", "{text}", {"text": text, "broken": broken})
        return self


@dataclass(frozen=True, slots=True)
class Checked:
    """Annotates a type whose values ``check`` judges; ``allowed`` says in words what passes."""

    check: Callable[[object, ValidationInfo], object]
    allowed: str

    def __get_pydantic_core_schema__(
        self,
        source: Any,  # noqa: ANN401  pydantic's signature
        handler: GetCoreSchemaHandler,
    ) -> CoreSchema:
        return core_schema.with_info_before_validator_function(self.check, handler(source))


@dataclass(frozen=True, slots=True)
class Unset:
    """Annotates a key that may be absent; ``meaning`` is what its absence stands for."""

    meaning: str


def integer_or(*words: str, low: int, high: int | None = None) -> Checked:
    """Accepts one of ``words``, or an integer from ``low`` to ``high``."""
    span = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
    allowed = ", ".join(f'"{word}"' for word in words) + f" or {span}"

    def check(value: object, _info: ValidationInfo) -> object:
        if isinstance(value, int) and not isinstance(value, bool):
            if value >= low and (high is None or value <= high):
                return value
        elif isinstance(value, str) and value in words:
            return value
        quoted = isinstance(value, str) and value.strip().lstrip("+-").isdigit()
        raise NotAllowed(f"must be {allowed}" + (", without quotes" if quoted else ""))

    return Checked(check, allowed)


def absolute(path: Path, folder: Path) -> Path:
    """``path`` taken from ``folder``. Folders on the way are resolved; a link at the end is kept,
    because its name is the one the user knows."""
    joined = folder / path
    if joined.name in ("", ".."):
        return Path(os.path.realpath(joined))
    return Path(os.path.realpath(joined.parent)) / joined.name


def _path(value: object, info: ValidationInfo) -> Path:
    if not isinstance(value, str):
        raise NotAllowed("must be a path, written as text in quotes")
    if not value.strip():
        raise NotAllowed("must not be empty: give a path, or remove the key")
    if "\0" in value:
        raise NotAllowed("must be a path, and a path holds no NUL character")
    if not isinstance(info.context, Origin):
        raise TypeError("a configuration is validated with its Origin as context")
    home = os.path.expanduser(value) if value.startswith("~/") else value  # noqa: PTH111  never raises
    return absolute(Path(home), info.context.folder)


def _text(value: object, _info: ValidationInfo) -> str:
    if not isinstance(value, str) or not value.strip():
        raise NotAllowed("must be text in quotes, not empty")
    return value


def _line_of_text(value: object, info: ValidationInfo) -> str:
    text = _text(value, info)
    if len(text) > 255 or not text.isprintable():
        raise NotAllowed("must be one line of at most 255 printable characters")
    return text


def texts(value: object, example: str) -> list[str]:
    """``value`` as a list of non-empty texts.

    Raises:
        NotAllowed: it is something else; the message shows ``example``.
    """
    if not isinstance(value, list):
        raise NotAllowed(f"must be a list of texts, for example {example}")
    for number, item in enumerate(value, start=1):
        if not isinstance(item, str) or not item.strip() or "\0" in item:
            raise NotAllowed(
                f"must be a list of texts, for example {example}: item {number} is not text, "
                "or is empty"
            )
    return value


_COMMAND_EXAMPLE = '["python3", "reward.py"]'


def _command(value: object, _info: ValidationInfo) -> list[str]:
    command = texts(value, _COMMAND_EXAMPLE)
    if not command:
        raise NotAllowed(f"must name a program, for example {_COMMAND_EXAMPLE}")
    return command


PathValue = Annotated[Path, Checked(_path, "a path")]
Text = Annotated[str, Checked(_text, "text, not empty")]
LineOfText = Annotated[str, Checked(_line_of_text, "one line of text, at most 255 characters")]
Command = Annotated[list[str], Checked(_command, "a list of texts: a program and its arguments")]
