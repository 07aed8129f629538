import math
import re

import pytest

from trainer.config.availability import UNAVAILABLE
from trainer.config.models import CONFIGS
from trainer.config.schema import literal_words, sections
from trainer.health.guide import GUIDE
from trainer.health.reference import KEY

ALGORITHMS = ("grpo", "ppo", "sft")


def keys_of(algorithm):
    """Every dotted key and section of an algorithm's file, with the field where it is a key."""
    known = {}
    for info in sections(CONFIGS[algorithm]):
        known[info.name] = None
        known |= {f"{info.name}.{key}": field for key, field in info.keys.items()}
    return known


def is_refused(key):
    """Whether the key, or a section around it, is refused whatever its value."""
    around = {key[: match.start()] for match in re.finditer(r"\.", key)} | {key}
    return any(row.key in around for row in UNAVAILABLE)


def cures():
    for metric in GUIDE:
        for rule in metric.rules:
            for algorithm in metric.algorithms:
                yield pytest.param(
                    algorithm, rule.change[algorithm], id=f"{metric.name}-{algorithm}"
                )


@pytest.mark.parametrize(("algorithm", "cure"), list(cures()))
def test_cures_name_keys_that_the_algorithm_has(algorithm, cure):
    known = keys_of(algorithm)
    named = set(KEY.findall(cure)) | set(re.findall(r"\[([a-z_.]+)\]", cure))
    for key in named:
        assert key in known, key
        assert not is_refused(key), key
    assert cure.endswith(".")


@pytest.mark.parametrize(("algorithm", "cure"), list(cures()))
def test_values_in_cures_are_allowed(algorithm, cure):
    known = keys_of(algorithm)
    for key, value in re.findall(rf'({KEY.pattern}) = "(\w+)"', cure):
        assert value in literal_words(known[key])


def test_what_entries_depend_on_exists():
    for metric in GUIDE:
        for key, value in (metric.when or {}).items():
            known = keys_of(metric.algorithms[0])
            assert key in known
            assert value is None or value in literal_words(known[key])


def test_a_special_case_comes_after_the_general_one():
    seen = set()
    for metric in GUIDE:
        if metric.when is None:
            assert metric.name not in seen
        seen |= {metric.name}


def test_bands_lie_on_the_good_side_of_the_rules():
    for metric in GUIDE:
        band = metric.healthy
        assert band.text
        low = -math.inf if band.low is None else band.low
        high = band.high if isinstance(band.high, float) else math.inf
        assert low < high
        for rule in metric.rules:
            limit = getattr(rule.test, "limit", None)
            if isinstance(limit, float):
                assert not low < limit < high, metric.name


def test_the_names_are_those_of_the_metrics():
    prefixes = {"reward", "batch", "audit", "sampler", "policy", "completions", "critic", "sft"}
    for metric in GUIDE:
        assert metric.name.partition("/")[0] in prefixes
        assert set(metric.algorithms) <= set(ALGORITHMS)
        assert all(set(metric.algorithms) <= set(rule.change) for rule in metric.rules)


def test_the_critic_and_its_loss_belong_to_ppo():
    for metric in GUIDE:
        if metric.name in ("critic/explained_variance", "policy/value_loss", "reward/std"):
            assert metric.algorithms == ("ppo",)
