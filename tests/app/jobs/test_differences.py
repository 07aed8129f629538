from __future__ import annotations

from pathlib import Path

import pytest

from app.jobs.differences import differences
from trainer.config import load_config, resolved_params


@pytest.fixture(scope="module")
def grpo(root: Path) -> dict[str, object]:
    return resolved_params(load_config(root / "examples" / "smoke_tiny_grpo.toml"))


@pytest.fixture(scope="module")
def ppo(root: Path) -> dict[str, object]:
    return resolved_params(load_config(root / "examples" / "smoke_tiny_ppo.toml"))


def test_differences_are_the_keys_that_differ_and_no_others(grpo):
    other = grpo | {
        "training": {**grpo["training"], "lr": 1e-5},
        "run": {**grpo["run"], "name": "second"},
    }
    assert [(d.key, d.values, d.name) for d in differences([("grpo", grpo), ("grpo", other)])] == [
        ("training.lr", ["0.0008", "1e-05"], False),
        ("run.name", ['"smoke_tiny_grpo"', '"second"'], True),
    ]
    assert differences([("grpo", grpo), ("grpo", grpo)]) == []
    assert differences([("grpo", grpo)]) == []


def test_two_algorithms_are_held_against_each_other_key_by_key(grpo, ppo):
    found = {d.key: d.values for d in differences([("grpo", grpo), ("ppo", ppo)])}
    assert found["run.algorithm"] == ['"grpo"', '"ppo"']
    assert found["grpo/ppo.reward_command"][1] == '["python3", "smoke_ppo_reward.py"]'
    assert found["ppo.clip_range"] == ["—", "0.2"]
    assert found["grpo.clip_range_low"] == ["0.2", "—"]
    assert not [key for key in found if key.endswith("sampling.seed")]
