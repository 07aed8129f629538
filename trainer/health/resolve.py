"""Which entries of the metric guide hold for a run, and the numbers behind their limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainer.config.common import AuditSection
from trainer.health.guide import GUIDE
from trainer.health.rules import Above, Below, Jump, Limit, Metric, Test


def guide_for(algorithm: str, params: Mapping[str, Any]) -> tuple[Metric, ...]:
    """The entries that hold for a run, at most one for each metric, with limits as numbers.

    ``params`` is the resolved configuration as nested JSON types; what it lacks counts as unset.
    """
    chosen: dict[str, Metric] = {}
    for metric in GUIDE:
        if algorithm in metric.algorithms and _holds(metric.when, params):
            chosen[metric.name] = metric  # a special case stands after the general one
    return tuple(_resolved(metric, params) for metric in chosen.values())


def _holds(when: Mapping[str, Any] | None, params: Mapping[str, Any]) -> bool:
    for key, wanted in (when or {}).items():
        value = lookup(params, key)
        if value is None or (wanted is not None and value != wanted):
            return False
    return True


def _resolved(metric: Metric, params: Mapping[str, Any]) -> Metric:
    rules = tuple(replace(rule, test=_with_limit(rule.test, params)) for rule in metric.rules)
    high = metric.healthy.high
    if high is not None:
        high = _number(high, params)
    return replace(metric, rules=rules, healthy=replace(metric.healthy, high=high))


def _with_limit(test: Test, params: Mapping[str, Any]) -> Test:
    if isinstance(test, Above | Below | Jump):
        return replace(test, limit=_number(test.limit, params))
    return test


def _number(limit: Limit, params: Mapping[str, Any]) -> float:
    """Raises KeyError for a key that has neither a value nor a default of the audit's."""
    if not isinstance(limit, str):
        return limit
    value = lookup(params, limit)
    if value is None:
        section, _, key = limit.partition(".")
        if section != "audit":
            raise KeyError(limit)
        value = getattr(AuditSection(), key)
    return float(value)


def lookup(params: Mapping[str, Any], key: str) -> Any:  # noqa: ANN401  a value of the TOML file
    """The value of a dotted key in resolved params; None where it, or a section, is unset."""
    value: Any = params
    for name in key.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def steps_per_update(algorithm: str, params: Mapping[str, Any]) -> float:
    """The optimizer steps planned for an update; infinite where ``params`` lack them."""
    keys = {
        "grpo": ("grpo.grpo_epochs", "grpo.prompts_per_update"),
        "ppo": ("ppo.ppo_epochs", "ppo.minibatches"),
    }
    counts = [lookup(params, key) for key in keys.get(algorithm, ())]
    return math.prod(math.inf if count is None else count for count in counts)
