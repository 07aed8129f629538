import math

import pytest

from trainer.health.resolve import guide_for, lookup, steps_per_update
from trainer.health.rules import Above


def entry(name, algorithm, params):
    return {metric.name: metric for metric in guide_for(algorithm, params)}.get(name)


def test_one_entry_for_each_metric():
    for algorithm in ("grpo", "ppo"):
        names = [metric.name for metric in guide_for(algorithm, {})]
        assert len(names) == len(set(names))
        assert names[0] == "reward/mean"
    assert [metric.name for metric in guide_for("sft", {})] == ["sft/loss"]


def test_ratios_of_answers_have_a_narrower_band():
    token = {"grpo": {"importance_sampling_level": "token"}}
    sequence = {"grpo": {"importance_sampling_level": "sequence"}}
    assert entry("policy/clip_fraction", "grpo", token).healthy.high == 0.35
    assert entry("policy/clip_fraction", "grpo", sequence).healthy.high == 0.25
    assert entry("policy/clip_fraction", "ppo", {}).healthy.high == 0.35


def test_limits_come_from_the_run():
    params = {"audit": {"verbosity_limit": 0.5}}
    verbosity = entry("audit/verbosity", "grpo", params)
    assert verbosity.healthy.high == 0.5
    assert verbosity.rules[0].test == Above(0.5)
    # what the run does not say is the default
    assert entry("audit/sycophancy", "grpo", params).healthy.high == 0.2
    assert entry("audit/repetition", "ppo", {"audit": None}).healthy.high == 0.15


def test_a_kl_target_replaces_the_general_limit():
    steered = {"ppo": {"kl_control": {"target": 6.0, "horizon": 1000}}}
    assert entry("policy/kl_per_answer", "ppo", {}).rules[1].test == Above(25.0)
    rules = entry("policy/kl_per_answer", "ppo", steered).rules
    assert [rule.test for rule in rules] == [Above(6.0, over=20, times=2.0)]
    assert entry("policy/kl", "grpo", {"grpo": {"kl_schedule": None}}) is None
    scheduled = {"grpo": {"kl_schedule": {"target": 0.05, "warmup_updates": 2}}}
    assert entry("policy/kl", "grpo", scheduled).rules[0].test.limit == 0.05


def test_lookup():
    params = {"a": {"b": {"c": 1}, "d": None}}
    assert lookup(params, "a.b.c") == 1
    assert lookup(params, "a.d.c") is None
    assert lookup(params, "x.y") is None


@pytest.mark.parametrize(
    ("algorithm", "params", "steps"),
    [
        ("grpo", {"grpo": {"grpo_epochs": 2, "prompts_per_update": 4}}, 8),
        ("ppo", {"ppo": {"ppo_epochs": 1, "minibatches": 1}}, 1),
        ("ppo", {}, math.inf),
    ],
)
def test_steps_of_an_update(algorithm, params, steps):
    assert steps_per_update(algorithm, params) == steps
