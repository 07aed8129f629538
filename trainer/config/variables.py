"""Values of a TOML table that a chat template may be given: what JSON has too, but for null."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import ValidationInfo

from trainer.config.base import Checked, NotAllowed

_EXAMPLE = "enable_thinking = false"


def _variables(value: object, _info: ValidationInfo) -> object:
    if not isinstance(value, dict):
        raise NotAllowed(f"must be a table of variables, for example {_EXAMPLE}")
    for name, item in value.items():
        if not (name.isascii() and name.isidentifier()):
            raise NotAllowed(
                f"names the variable {name!r}: a name has letters, digits and underscores, and "
                "does not begin with a digit"
            )
        if (wrong := _unfit(item)) is not None:
            raise NotAllowed(
                f"gives {name} the value {wrong}: a variable is text, a number, true or "
                "false, or a list or a table of these"
            )
    return value


def _unfit(value: object) -> str | None:
    """What in ``value`` a template cannot be given, in words."""
    if isinstance(value, dict):
        return next((wrong for item in value.values() if (wrong := _unfit(item))), None)
    if isinstance(value, list):
        return next((wrong for item in value if (wrong := _unfit(item))), None)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return None if isinstance(value, str | int | float) else str(value)


TemplateVariables = Annotated[dict[str, Any], Checked(_variables, "a table of variables")]
