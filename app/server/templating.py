"""Templates, and how numbers and times are written in them."""

from __future__ import annotations

import hashlib
import math
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from app.resources import bundled
from app.text import neutralise
from trainer.health.headline import headline_of


def environment() -> Environment:
    """Everything is escaped; a name that is not there is an error and not an empty place."""
    env = Environment(
        loader=FileSystemLoader(bundled("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {
        "number": number,
        "signed": signed,
        "percent": percent,
        "duration": duration,
        "clock": clock,
        "moment": moment,
        "size": size,
        "visible": visible,
    }
    env.globals["static"] = static_url
    env.globals["headline_of"] = headline_of
    return env


@cache
def static_url(path: str) -> str:
    """The address of a file of ``static/``, which changes with its content."""
    content = (bundled("static") / path).read_bytes()
    return f"/static/{path}?v={hashlib.sha256(content).hexdigest()[:12]}"


def static_folder() -> Path:
    return bundled("static")


def number(value: float | None, digits: int = 3) -> str:
    """Three significant digits, or a dash where there is no number."""
    if value is None or not math.isfinite(value):
        return "—"
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        decimals = max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 2
        return f"{value:.{min(decimals, 4)}f}".replace("-", "−")
    return f"{value:.{digits - 1}e}".replace("-", "−")


def signed(value: float | None, digits: int = 3) -> str:
    words = number(value, digits)
    return f"+{words}" if value is not None and value > 0 else words


def percent(share: float | None) -> str:
    return "—" if share is None or not math.isfinite(share) else f"{100 * share:.0f} %"


def duration(seconds: float | None) -> str:
    """In the two largest units: 41 s, 9 min, 3 h 12 min, 2 d 4 h."""
    if seconds is None or not math.isfinite(seconds):
        return "—"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 90:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def visible(text: str) -> str:
    """``text`` with a sign in the place of each control and direction character: it cannot show
    other words than it holds. Lines stay lines."""
    return neutralise(text, keep_newlines=True)


def clock(at: float | None) -> str:
    """A moment as ISO 8601 in UTC, for ``<time datetime>``; the browser writes it in local time."""
    return "" if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def moment(at: float | None) -> str:
    """The same for a person, for where no script writes it in local time: 2026-03-01 17:05 UTC."""
    return "" if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"


def size(count: int | None) -> str:
    if count is None:
        return "—"
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
