"""What is wrong with a value of an address or a form, in a sentence that says what is taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.text import neutralise

_LONGEST_VALUE = 40
_TAKEN = {
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a whole number of fewer digits",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_parsing": "true or false",
    "greater_than": "more than {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "less than {lt}",
    "less_than_equal": "{le} or less",
    "literal_error": "{expected}",
    "string_too_short": "no shorter than {min_length} letters",
    "string_too_long": "no longer than {max_length} letters",
    "too_short": "at least {min_length} values",
    "too_long": "at most {max_length} values",
}
"""By pydantic's names of what it finds."""


def sentence(fault: Mapping[str, Any]) -> str:
    """``name = value must be a whole number.`` of one of the faults that pydantic lists."""
    place = fault["loc"]
    name = ".".join(str(part) for part in place[1:]) or str(place[0])
    kind, context = fault["type"], fault.get("ctx", {})
    if kind == "missing":
        return f"{name} is missing."
    if kind == "string_too_short" and context["min_length"] == 1:
        return f"{name} must not be empty."
    if kind == "value_error":
        return f"{name}: {context['error']}."
    taken = _TAKEN.get(kind)
    if taken is None:
        return f"{name}: {fault['msg']}."
    return f"{name}{_shown(fault['input'])} must be {taken.format(**context)}."


def _shown(value: object) -> str:
    if not isinstance(value, str | int | float):
        return ""
    words = neutralise(str(value))
    cut = len(words) > _LONGEST_VALUE
    return f" = {words[:_LONGEST_VALUE]}{'…' if cut else ''}" if words else ""
