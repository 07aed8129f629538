"""Lines of the files that other programs read."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from typing import Any

Record = dict[str, Any]

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""The last four are the wide forms of the first, which some spreadsheets read alike."""


def json_line(record: Record) -> str:
    """``record`` on a line, with null for numbers that are not finite."""
    return (
        json.dumps(finite(record), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        + "\n"
    )


def csv_line(cells: Sequence[object]) -> str:
    """``cells`` on a line; lists and objects in them as JSON."""
    buffer = io.StringIO()
    # With this end of a line, and no shorter one, the writer quotes both of its characters.
    csv.writer(buffer, lineterminator="\r\n").writerow([_cell(cell) for cell in cells])
    return buffer.getvalue().removesuffix("\r\n") + "\n"


def finite(value: Any) -> Any:  # noqa: ANN401  JSON types
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: finite(item) for key, item in value.items()}
        case list() | tuple():
            return [finite(item) for item in value]
    return value


def _cell(value: object) -> object:
    """A spreadsheet takes a text that begins like a formula for one, and answers are written by a
    model: such a text gets an apostrophe in front, unless it is a number."""
    if isinstance(value, list | dict):
        return json.dumps(finite(value), ensure_ascii=False)
    if not isinstance(value, str) or not value.startswith(_FORMULA) or _is_number(value):
        return value
    return f"'{value}"


def _is_number(words: str) -> bool:
    try:
        float(words)
    except ValueError:
        return False
    return "\n" not in words and "\t" not in words and "\r" not in words
