"""What a configuration may say already but the trainer does not do yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainer.config.base import Section
from trainer.config.models import RunConfig
from trainer.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A key or section whose behaviour is missing: with any value, or only with ``value``."""

    key: str
    value: str | bool | None = None

    @property
    def shown(self) -> str:
        if self.value is None:
            return self.key
        value = str(self.value).lower() if isinstance(self.value, bool) else f'"{self.value}"'
        return f"{self.key} = {value}"


# The only place that decides: remove a row when its behaviour exists.
UNAVAILABLE: tuple[Unavailable, ...] = (Unavailable("reference"),)


def refuse_unavailable(config: RunConfig) -> None:
    """Stop a run that would silently lack something its configuration asks for.

    Raises:
        ConfigError: one paragraph for each such key, with its place in the file.
    """
    refused = [row for row in UNAVAILABLE if _asked_for(config, row)]
    if refused:
        raise ConfigError(
            "\n\n".join(
                f"{config.where(row.key)}: {row.shown} is not available yet: "
                f"{_remedy(row)}, or wait for a later version."
                for row in refused
            )
        )


def resolved_params(config: RunConfig) -> dict[str, Any]:
    """Every key with the value it has, as JSON types; what is unset is there as null."""
    return config.model_dump(mode="json")


def _remedy(row: Unavailable) -> str:
    if row.value is True:
        return f"set {row.key} = false"
    return "remove it" if row.value is None else "choose another value"


def _asked_for(config: RunConfig, row: Unavailable) -> bool:
    section: Section = config
    *outer, key = row.key.split(".")
    for name in outer:
        below = getattr(section, name, None)
        if not isinstance(below, Section) or not section.given(name):
            return False
        section = below
    if row.value is None:
        return section.given(key)
    return bool(getattr(section, key) == row.value)
