"""Which keys of a configuration name files that a run reads, programs that it starts, and places
that it writes to."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from trainer.config import RunConfig
from trainer.config.base import Section
from trainer.config.common import ObserveSection

COPIED = (
    "lora.init_adapter",
    "evaluation.data",
    "grpo.prompts",
    "ppo.prompts",
    "sft.data",
)
"""Files that a run gets a copy of, so that it keeps what it ran with."""
REFERRED = (
    "model.path",
    "reference.model",
    "checkpoint.resume_from",
    "grpo.reward_model.path",
    "ppo.reward_model.path",
)
"""Large files, and folders, which are read where they lie."""
COMMANDS = ("grpo.reward_command", "ppo.reward_command", "grpo.judge.command")
WRITTEN = (
    "output.path",
    "checkpoint.directory",
    "metrics.tensorboard_dir",
    "observe.directory",
    "grpo.judge.cache_path",
)
"""Places that a run writes to; those of the browser's runs are moved into the run's folder."""
OUTPUT_FOLDER = "output"


@dataclass(frozen=True, slots=True)
class Named:
    """A file that a configuration names, as it is ``written`` there. ``word`` is its place in a
    command, which may also hold words that are no files."""

    key: str
    written: str
    word: int | None = None

    @property
    def needed(self) -> bool:
        return self.word is None

    @property
    def large(self) -> bool:
        return self.key in REFERRED


def named_files(raw: Mapping[str, Any]) -> list[Named]:
    """The files that the tables of a TOML file name. ``raw`` has been accepted by the loader."""
    found = [
        Named(key, value)
        for key in (*REFERRED, *COPIED)
        if (value := value_at(raw, key)) is not None
    ]
    for key, words in commands(raw).items():
        found += [Named(key, word, n) for n, word in enumerate(words) if _may_be_file(word, n)]
    return found


def commands(raw: Mapping[str, Any]) -> dict[str, list[str]]:
    return {key: list(value) for key in COMMANDS if (value := value_at(raw, key)) is not None}


def shown_command(words: list[str]) -> str:
    return shlex.join(words)


def value_at(raw: Mapping[str, Any], key: str) -> Any:  # noqa: ANN401 - whatever the file says
    """The value of a dotted ``key``, or None where it is not there."""
    value: Any = raw
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def with_values(config: RunConfig, values: Mapping[str, object]) -> RunConfig:
    """``config`` with other values at dotted keys, in the sections that it has."""
    changed: Section = config
    for key, value in values.items():
        changed = _with_value(changed, key.split("."), value)
    return cast(RunConfig, changed)


def kept_inside(config: RunConfig, folder: Path) -> RunConfig:
    """``config`` with all that it writes below ``folder``, and its texts kept in the store."""
    place = folder / OUTPUT_FOLDER
    values: dict[str, object] = {"output.path": place / config.output.path.name}
    if config.checkpoint is not None and config.checkpoint.directory is not None:
        values["checkpoint.directory"] = place / "checkpoints"
    if config.metrics.tensorboard_dir is not None:
        values["metrics.tensorboard_dir"] = place / "tensorboard"
    if config.observe is None:
        values["observe"] = ObserveSection()
    elif config.observe.directory is not None:
        values["observe.directory"] = place
    judge = getattr(getattr(config, "grpo", None), "judge", None)
    if getattr(judge, "cache_path", None) is not None:
        values["grpo.judge.cache_path"] = place / "judge-cache.jsonl"
    return with_values(config, values)


def _may_be_file(word: str, position: int) -> bool:
    if position == 0:
        return "/" in word  # a bare name is looked for in PATH
    return not word.startswith("-") and "\0" not in word


def _with_value(section: Section, path: list[str], value: object) -> Section:
    key, *rest = path
    if rest:
        below = getattr(section, key, None)
        if not isinstance(below, Section):
            return section
        value = _with_value(below, rest, value)
    return section.model_copy(update={key: value})
