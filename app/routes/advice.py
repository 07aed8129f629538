"""The metric guide's words, with the keys of the configuration in them marked."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.health.reference import KEY, watch
from trainer.health.rules import Metric


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a sentence; ``key`` tells whether it names a key of the configuration."""

    text: str
    key: bool


@dataclass(frozen=True, slots=True)
class Advice:
    """When a metric is bad, what that means, and what to change."""

    when: str
    what: str
    change: list[Part]


def advice_on(metric: Metric, algorithm: str) -> list[Advice]:
    return [
        Advice(watch(rule).replace("`", ""), rule.what, parts_of(rule.change[algorithm]))
        for rule in metric.rules
        if algorithm in rule.change
    ]


def parts_of(sentence: str) -> list[Part]:
    """``sentence`` cut before and after each key, such as ``training.lr``."""
    parts: list[Part] = []
    end = 0
    for found in KEY.finditer(sentence):
        parts.append(Part(sentence[end : found.start()], key=False))
        parts.append(Part(found.group(), key=True))
        end = found.end()
    parts.append(Part(sentence[end:], key=False))
    return [part for part in parts if part.text]
