from __future__ import annotations

import pytest

from app.overrides import observed_in, with_seed
from trainer.config import load_config
from trainer.errors import ConfigError

CONFIG = """\
[run]
algorithm = "grpo"
[model]
path = "base.gguf"
[output]
path = "adapter.gguf"
[grpo]
prompts = "prompts.jsonl"
reward_command = ["python3", "reward.py"]
updates = 2
prompts_per_update = 2
group_size = 4
grpo_epochs = 1
clip_range_low = 0.2
clip_range_high = 0.28
kl_coefficient = 0.0
[grpo.sampling]
temperature = 1.0
top_p = 1.0
max_new_tokens = 8
seed = 42
"""
PPO = """\
[run]
algorithm = "ppo"
[model]
path = "base.gguf"
[output]
path = "adapter.gguf"
[ppo]
prompts = "prompts.jsonl"
reward_command = ["python3", "reward.py"]
updates = 2
rollout_batch_size = 4
ppo_epochs = 1
clip_range = 0.2
kl_coefficient = 0.0
[ppo.sampling]
temperature = 0.8
top_p = 0.9
max_new_tokens = 8
seed = 42
"""


@pytest.fixture
def config(tmp_path):
    (tmp_path / "grpo.toml").write_text(CONFIG)
    return load_config(tmp_path / "grpo.toml")


def test_the_seed_of_sampling_is_replaced_and_nothing_else(config):
    changed = with_seed(config, 7)
    assert changed.grpo.sampling.seed == 7
    expected = config.model_dump()
    expected["grpo"]["sampling"]["seed"] = 7
    assert changed.model_dump() == expected
    assert changed.where("grpo.sampling.seed") == config.where("grpo.sampling.seed")
    assert config.grpo.sampling.seed == 42


def test_a_ppo_runs_seed_is_replaced_too(tmp_path):
    (tmp_path / "ppo.toml").write_text(PPO)
    config = load_config(tmp_path / "ppo.toml")
    changed = with_seed(config, 7)
    expected = config.model_dump()
    expected["ppo"]["sampling"]["seed"] = 7
    assert changed.model_dump() == expected
    assert changed.rollout.minibatches == 4, "what follows from other keys is kept"


def test_records_can_be_sent_to_a_folder(config, tmp_path):
    assert config.observe is None
    observe = observed_in(config, tmp_path).observe
    assert (observe.directory, observe.every) == (tmp_path, 1)


def test_what_else_observe_says_is_kept(tmp_path):
    (tmp_path / "grpo.toml").write_text(CONFIG + '[observe]\ndirectory = "x"\nevery = 5\n')
    observe = observed_in(load_config(tmp_path / "grpo.toml"), tmp_path).observe
    assert (observe.directory, observe.every) == (tmp_path, 5)


def test_a_run_that_does_not_sample_has_no_such_seed(tmp_path):
    (tmp_path / "rows.jsonl").write_text("")
    path = tmp_path / "sft.toml"
    path.write_text(
        '[run]\nalgorithm = "sft"\n[model]\npath = "base.gguf"\n[output]\npath = "out.gguf"\n'
        '[sft]\ndata = "rows.jsonl"\n'
    )
    with pytest.raises(ConfigError, match="describes a run that samples nothing"):
        with_seed(load_config(path), 7)


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_what_is_no_seed_is_refused(tmp_path, seed):
    (tmp_path / "run.toml").write_text(CONFIG)
    with pytest.raises(ConfigError, match=f"--seed {seed} is no seed. Give a whole number from 0"):
        with_seed(load_config(tmp_path / "run.toml"), seed)
