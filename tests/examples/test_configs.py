import re

import pytest

from trainer.chat.dataset import read_prompts
from trainer.config import load_config, refuse_unavailable

CONFIGS = ("smoke_tiny_grpo.toml", "smoke_tiny_ppo.toml", "addition/grpo.toml", "addition/ppo.toml")


@pytest.mark.parametrize("name", CONFIGS)
def test_example_loads_and_writes_under_runs(examples, root, name):
    config = load_config(examples / name)

    refuse_unavailable(config)
    runs = root / "runs"
    assert config.output.path.resolve().is_relative_to(runs)
    assert config.observe.directory.resolve().is_relative_to(runs)
    assert config.rollout.prompts.is_file()


@pytest.mark.parametrize("prompts", ["tiny/prompts.jsonl", "addition/prompts.jsonl"])
def test_answers_of_the_prompts_are_the_sums_asked_for(examples, prompts):
    lines = read_prompts(examples / prompts)

    sums = [sum(map(int, re.findall("[0-9]+", line.question))) for line in lines]
    assert [line.metadata["answer"] for line in lines] == sums
    assert len({line.key for line in lines}) == len(lines)


def test_addition_asks_every_update_the_same_kinds_of_sums(examples):
    lines = read_prompts(examples / "addition" / "prompts.jsonl")

    digits = [len(re.findall("[0-9]", line.question)) for line in lines]
    assert len(digits) == 96
    assert all(sorted(digits[at : at + 4]) == [2, 2, 3, 4] for at in range(0, 96, 4))
