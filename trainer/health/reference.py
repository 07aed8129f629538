"""Writes the metric guide as a Markdown table into a page, between its two marks.

``python -m trainer.health.reference docs/health.md``
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from trainer.health.guide import GUIDE
from trainer.health.rules import (
    Above,
    Below,
    Fallen,
    Jump,
    Limit,
    Metric,
    NotRisen,
    OverStart,
    Rule,
    Test,
    UnderStart,
    Zero,
)

BEGIN = "<!-- Written by `python -m trainer.health.reference`; change trainer/health/guide.py. -->"
END = "<!-- End of what is written. -->"

KEY = re.compile(r"\b(?:training|audit|grpo|ppo|sft)(?:\.[a-z_0-9]+)+")
_CODE = re.compile(rf'\[[a-z_.]+\]|{KEY.pattern}(?: = (?:"[^"]*"|\w+))?|"[a-z0-9]+"')


def table() -> str:
    """The guide as Markdown, a row for each rule."""
    rows = [row for metric in GUIDE for row in _rows(metric)]
    head = ["| metric | healthy | watch | what it means then | what to change |"]
    return "\n".join([*head, "| --- | --- | --- | --- | --- |", *rows])


def with_table(page: str) -> str:
    """``page`` with the table as it is now. Raises ValueError where a mark is missing."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page needs the line {BEGIN} and, below it, the line {END}")
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def _rows(metric: Metric) -> Iterator[str]:
    name, healthy = _name(metric), metric.healthy.text
    if not metric.rules:
        yield f"| {name} | {healthy} | | | |"
    for rule in metric.rules:
        yield f"| {name} | {healthy} | {watch(rule)} | {rule.what} | {_change(metric, rule)} |"
        name = healthy = ""


def _name(metric: Metric) -> str:
    if metric.when:
        conditions = [
            f"`{key}`" if value is None else f'`{key} = "{value}"`'
            for key, value in metric.when.items()
        ]
        return f"`{metric.name}` with {' and '.join(conditions)}"
    only = f" ({metric.algorithms[0].upper()})" if len(metric.algorithms) == 1 else ""
    return f"`{metric.name}`{only}: {metric.means.rstrip('.')}"


def watch(rule: Rule) -> str:
    """When a rule holds, in words."""
    words = _words(rule.test)
    if rule.needs_steps:
        words += ", with several steps an update"
    if rule.unless_at_best:
        words += ", and not at its best"
    return words + (", and not learning" if rule.unless_learning else "")


def _words(test: Test) -> str:
    match test:
        case Above(limit=limit, over=over, times=times, after=after):
            factor = "" if times == 1 else f"{times:g} times "
            early = "" if after is None else f", from update {after} on"
            return f"above {factor}{_limit(limit)} (median of {over}{early})"
        case Below(limit=limit, over=over, after=after):
            return f"below {_limit(limit)} (median of {over}) after {after} updates"
        case Zero(over=over):
            return f"exactly 0 for {over} updates"
        case Jump(limit=limit, times=times):
            return f"jumps above {_limit(limit)}, to {times:g} times what it was"
        case UnderStart(fraction=fraction, over=over):
            return f"under {fraction:.0%} of its start (median of {over})"
        case OverStart(times=times, least=least, over=over):
            floor = f" and {least:g}" if least else ""
            return f"above {times:g} times its start{floor} (median of {over})"
        case NotRisen(after=after, over=over):
            return f"after {after} updates, mean of {over} not above that of the first {over}"
        case Fallen(after=after, over=over):
            return f"after {after} updates, mean of {over} clearly below its best"


def _limit(limit: Limit) -> str:
    return f"`{limit}`" if isinstance(limit, str) else f"{limit:g}"


def _change(metric: Metric, rule: Rule) -> str:
    """The cure, once where all of its algorithms call their keys the same."""
    texts = {name: _marked(rule.change[name]) for name in metric.algorithms}
    short = {text.replace(f"`{name}.", "`") for name, text in texts.items()}
    if len(texts) == 1:
        return next(iter(texts.values()))
    if len(short) == 1:
        return short.pop()
    return " ".join(f"*{name.upper()}:* {text}" for name, text in texts.items())


def _marked(text: str) -> str:
    """``text`` with keys, their values and sections as code."""
    return _CODE.sub(lambda match: f"`{match.group()}`", text)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
