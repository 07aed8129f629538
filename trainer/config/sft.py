"""``[sft]``: supervised fine-tuning on given answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo

from trainer.config.base import Checked, NotAllowed, PathValue, Section, Unset

TEXTS_PER_STEP = 8
"""The most texts of one optimizer step."""

_FORMATS = {".jsonl": "jsonl", ".txt": "text", ".text": "text"}


def steps_of(texts: int) -> int:
    """The optimizer steps of an epoch over so many texts."""
    return -(-texts // TEXTS_PER_STEP)


def _format_of(fields: dict[str, Any]) -> str:
    """The format that the data's name tells, or its ending as it stands."""
    data: Path = fields["data"]
    return _FORMATS.get(data.suffix.lower(), data.suffix)


def _data_format(value: object, _info: ValidationInfo) -> object:
    if value in ("jsonl", "text"):
        return value
    raise NotAllowed(
        'must be "jsonl" or "text"; it can be left out only where the name of sft.data ends in '
        ".jsonl, .txt or .text"
    )


DataFormat = Annotated[Literal["jsonl", "text"], Checked(_data_format, '"jsonl" or "text"')]


class SftSection(Section):
    """Supervised fine-tuning; the loss covers the assistant's tokens, the end of turn included."""

    data: PathValue
    """The conversations, or the plain text, to learn from: one on each line."""

    data_format: Annotated[DataFormat, Unset("told by the ending of `data`")] = Field(
        default_factory=_format_of, validate_default=True
    )
    """Chat JSONL whose conversations end with an answer, or plain text."""

    shuffle: bool = True
    """Whether texts come in a new order in each epoch, drawn from `lora.seed`."""

    def format_of(self, path: Path) -> Literal["jsonl", "text"]:
        """The format of another file for the same use: told by its ending, or that of ``data``."""
        known = _FORMATS.get(path.suffix.lower(), self.data_format)
        return "text" if known == "text" else "jsonl"
