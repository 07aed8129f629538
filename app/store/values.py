"""From what the trainer says to what a database can keep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np


def text(value: str) -> str:
    """``value`` in a form that every database takes: without NUL and lone surrogates, each of
    which becomes a replacement character."""
    if value.isascii() and "\0" not in value:
        return value
    return (
        value.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    )


def number(value: float) -> float | None:
    """None where ``value`` is not finite."""
    return float(value) if math.isfinite(value) else None


def plain(value: object) -> Any:  # noqa: ANN401  any JSON value
    """``value`` as JSON types; what is not finite becomes null. Raises TypeError for what JSON has
    no form for."""
    match value:
        case None | bool() | int():
            return value
        case str():
            return text(value)
        case float() | np.floating():
            return number(float(value))
        case np.bool_() | np.integer():
            return value.item()
        case PurePath():
            return text(str(value))
        case Mapping():
            return {text(str(key)): plain(item) for key, item in value.items()}
        case Sequence() if not isinstance(value, bytes | bytearray):
            return [plain(item) for item in value]
    raise TypeError(f"a {type(value).__name__} has no form in JSON")
