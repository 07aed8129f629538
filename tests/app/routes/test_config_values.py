from __future__ import annotations

from pathlib import Path

import pytest

from app.routes.config_values import tables_of, unused
from trainer.config import load_config, resolved_params


@pytest.fixture(scope="module")
def grpo(root: Path) -> dict[str, object]:
    return resolved_params(load_config(root / "examples" / "smoke_tiny_grpo.toml"))


@pytest.fixture(scope="module")
def sft(root: Path) -> dict[str, object]:
    return resolved_params(load_config(root / "examples" / "smoke_tiny_sft.toml"))


@pytest.fixture(scope="module")
def ppo(root: Path) -> dict[str, object]:
    return resolved_params(load_config(root / "examples" / "smoke_tiny_ppo.toml"))


def settings(algorithm, params):
    return {
        f"{table.name}.{setting.key}": setting
        for table in tables_of(algorithm, params)
        for setting in table.settings
    }


def test_what_was_chosen_is_told_from_what_is_the_default(grpo):
    found = settings("grpo", grpo)
    assert (found["training.lr"].value, found["training.lr"].state) == ("0.0008", "chosen")
    assert found["training.lr"].default == "0.0001"
    assert (found["training.optimizer"].value, found["training.optimizer"].state) == (
        '"adamw"',
        "default",
    )
    # Written in the file, and the same as the default.
    assert found["lora.rank"].state == "default"
    # Has to be given, so there is no default to differ from.
    assert (found["grpo.group_size"].state, found["grpo.group_size"].default) == ("chosen", None)


def test_a_default_that_follows_from_a_path_is_told_from_its_stored_form(sft):
    assert isinstance(sft["sft"]["data"], str)
    found = settings("sft", sft)["sft.data_format"]
    assert (found.value, found.state, found.default) == ('"jsonl"', "default", '"jsonl"')


def test_a_key_says_what_it_does(grpo):
    assert "seed" in settings("grpo", grpo)["grpo.sampling.seed"].means


def test_what_is_unset_says_what_that_stands_for(grpo):
    assert settings("grpo", grpo)["training.threads"].value == "unset: automatic"


def test_sections_stand_in_the_order_of_the_documentation_and_unused_ones_apart(grpo):
    names = [table.name for table in tables_of("grpo", grpo)]
    assert names[:5] == ["run", "model", "output", "lora", "training"]
    assert names[-2:] == ["grpo", "grpo.sampling"]
    missing = unused("grpo", grpo)
    assert "grpo.judge" in missing
    assert not set(missing) & set(names)


def test_every_value_of_the_configuration_is_there_once(grpo, ppo, sft):
    for algorithm, params in (("grpo", grpo), ("ppo", ppo), ("sft", sft)):
        keys = [f"{t.name}.{s.key}" for t in tables_of(algorithm, params) for s in t.settings]
        assert len(keys) == len(set(keys))
        assert set(_leaves(params)) <= set(keys)


def _leaves(params, name=""):
    for key, value in params.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{name}{key}.")
        elif value is not None:
            yield f"{name}{key}"


def test_keys_that_this_retrograd_does_not_know_are_shown_all_the_same(grpo):
    later = grpo | {"novelty": {"depth": 3}, "lora": {**grpo["lora"], "twist": True}}
    found = settings("grpo", later)
    assert found["novelty.depth"].value == "3"
    assert found["lora.twist"].value == "true"
    assert settings("an-algorithm-to-come", {"run": {"name": "x"}})["run.name"].value == '"x"'


def test_of_two_kinds_of_judge_the_one_that_the_run_has_is_described(grpo):
    judge = {"kind": "command", "command": ["judge", "it"], "timeout_seconds": 5.0}
    with_judge = grpo | {"grpo": {**grpo["grpo"], "judge": judge}}
    found = settings("grpo", with_judge)
    assert found["grpo.judge.command"].value == '["judge", "it"]'
    assert found["grpo.judge.command"].means


def test_a_run_that_has_not_started_has_no_tables():
    assert tables_of("grpo", {}) == []
