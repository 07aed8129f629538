"""Strangers' text made safe for a terminal, and numbers made short enough to read.

Answers, prompts, names in model files and what a reward program prints are all written by somebody
else. A terminal obeys control characters: they can move the cursor, retitle the window, hide text
or fake a line. None may reach it, so every such character is shown as what it is.
"""

from __future__ import annotations

import math
import unicodedata

from rich.cells import cell_len, set_cell_size

_JOINERS = "\u200c\u200d"  # hold letters of some scripts, and emoji, together; they move nothing


def neutralise(text: str, *, keep_newlines: bool = False) -> str:
    """``text`` with every control and direction character replaced by a visible sign."""
    if text.isprintable():
        return text
    text = text.replace("\r\n", "\n")
    return "".join(c if c.isprintable() else _visible(c, keep_newlines) for c in text)


def _visible(char: str, keep_newlines: bool) -> str:
    if char in "\n\u2028\u2029":
        return "\n" if keep_newlines else "↵"
    if char == "\t":
        return " "
    category = unicodedata.category(char)
    if category == "Cc":
        code = ord(char)
        if code < 0x20:
            return chr(0x2400 + code)  # the control pictures: ␛ for the escape character
        return "␡" if code == 0x7F else f"\\x{code:02x}"
    if category == "Cf" and char not in _JOINERS:
        return f"\\u{ord(char):04x}"
    return "\ufffd" if category == "Cs" else char


def one_line(text: str, cells: int) -> str:
    """``text`` neutralised, on one line, at most ``cells`` columns wide."""
    # No more than this can show; an answer may be megabytes long.
    line = " ".join(neutralise(text[: 4 * cells + 16]).split())
    if cell_len(line) <= cells and len(text) <= 4 * cells + 16:
        return line
    return set_cell_size(line, max(0, min(cells - 1, cell_len(line)))).rstrip() + "…"


def folded(text: str, cells: int) -> str:
    """``text`` with its lines broken at spaces to ``cells`` columns at most. A word that is longer,
    such as a path, stays whole, and so does a line that begins with a space, such as a command."""
    return "\n".join(
        line if line.startswith(" ") or cell_len(line) <= cells else _folded(line, cells)
        for line in text.split("\n")
    )


def _folded(line: str, cells: int) -> str:
    lines: list[str] = []
    for word in line.split(" "):
        if lines and cell_len(lines[-1]) + 1 + cell_len(word) <= cells:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return "\n".join(lines)


def score(value: float) -> str:
    """A reward, in about five characters."""
    if not math.isfinite(value):
        return _not_finite(value)
    digits = 3 if abs(value) < 10 else 2 if abs(value) < 100 else 1 if abs(value) < 1000 else 0
    return f"{value:.{digits}f}" if abs(value) < 1e5 else f"{value:.2g}"


def signed(value: float) -> str:
    return score(value) if not math.isfinite(value) or value < 0 else "+" + score(value)


def percent(fraction: float) -> str:
    if not math.isfinite(fraction):
        return _not_finite(fraction)
    value = 100 * fraction
    return f"{value:.1f}%" if 0 < value < 9.95 else f"{value:.0f}%"


def short(value: float) -> str:
    """Two significant digits: enough for an order of magnitude and its trend."""
    if not math.isfinite(value):
        return _not_finite(value)
    if abs(value) < 9.95:
        return f"{value:#.2g}"
    return f"{value:.0f}" if abs(value) < 1e5 else f"{value:.1e}"


def hundredths(value: float) -> str:
    if not math.isfinite(value):
        return _not_finite(value)
    # Adding zero takes the sign from a rounded -0.0.
    return f"{round(value, 2) + 0.0:.2f}" if abs(value) < 100 else f"{value:.2g}"


def length(tokens: float) -> str:
    if not math.isfinite(tokens):
        return _not_finite(tokens)
    return f"{tokens:.1f}" if tokens < 100 else f"{tokens:.0f}"


def seconds(value: float) -> str:
    if not math.isfinite(value):
        return _not_finite(value)
    return f"{value:.2f}s" if value < 1 else f"{value:.1f}s" if value < 100 else f"{value:.0f}s"


def duration(value: float) -> str:
    """``42 s``, ``3 min 05 s``, ``2 h 10 min``."""
    total = round(value)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60:02d} s"
    return f"{total // 3600} h {total % 3600 // 60:02d} min"


def counted(count: int, noun: str) -> str:
    """``1 update``, ``24 updates``; ``noun`` is one that takes an s."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def size(count: int) -> str:
    """A number of bytes, in binary units."""
    value = float(count)
    for unit in ("bytes", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def _not_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"
