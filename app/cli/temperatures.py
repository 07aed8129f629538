"""The temperatures that commands take."""

from __future__ import annotations

import typer

LEAST, MOST = 0.01, 100.0


def temperature_in_range(value: float | None) -> float | None:
    """The option's value. A temperature below 0.01 is lost in the rounding of the logits, and far
    below it is 0 in the sampler's single precision; raises BadParameter for it."""
    if value is None or value == 0 or LEAST <= value <= MOST:
        return value
    raise typer.BadParameter(
        f"{value:g} is neither 0, which takes the likeliest token, nor from {LEAST:g} to {MOST:g}."
    )
