import importlib.util
import random
import re

import pytest

from trainer.chat.dataset import read_conversations, read_prompts
from trainer.config import load_config, refuse_unavailable
from trainer.inputs import data_files

CONFIGS = (
    "smoke_tiny_grpo.toml",
    "smoke_tiny_ppo.toml",
    "smoke_tiny_sft.toml",
    "addition/grpo.toml",
    "addition/ppo.toml",
    "rewards/grpo.toml",
)


@pytest.mark.parametrize("name", CONFIGS)
def test_example_loads_and_writes_under_runs(examples, root, name):
    config = load_config(examples / name)

    refuse_unavailable(config)
    runs = root / "runs"
    assert config.output.path.resolve().is_relative_to(runs)
    assert config.observe.directory.resolve().is_relative_to(runs)
    assert all(path.is_file() for path in data_files(config).values())


@pytest.mark.parametrize(
    "prompts", ["tiny/prompts.jsonl", "addition/prompts.jsonl", "addition/held_out.jsonl"]
)
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


def test_the_held_out_sums_are_those_that_the_script_writes_and_not_trained_on(examples):
    folder = examples / "addition"
    spec = importlib.util.spec_from_file_location("make_held_out", folder / "make_held_out.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    written = (folder / "held_out.jsonl").read_text(encoding="utf-8").splitlines()
    assert script.held_out() == written
    keys = [
        {line.key for line in read_prompts(folder / n)} for n in ("prompts.jsonl", "held_out.jsonl")
    ]
    assert len(keys[1]) == 64
    assert not keys[0] & keys[1]


def test_the_sums_to_learn_are_right_and_none_of_them_is_held_out(examples):
    questions = {}
    for name in ("sums.jsonl", "sums_held_out.jsonl"):
        lines = read_conversations(examples / "tiny" / name)
        for question, answer in (line.content for line in lines):
            terms = tuple(map(int, re.findall("[0-9]+", question.content)))
            assert int(answer.content) == sum(terms)
            questions.setdefault(terms, []).append(name)
    assert len(questions) == 100
    assert [len(names) for names in questions.values()] == [1] * 100
    assert list(questions.values()).count(["sums.jsonl"]) == 80


def test_the_sums_are_the_ones_that_the_script_writes(examples, make, tmp_path):
    one, other = tmp_path / "sums.jsonl", tmp_path / "sums_held_out.jsonl"
    make.write_sums(one, other, random.Random(1))
    for path in (one, other):
        assert path.read_bytes() == (examples / "tiny" / path.name).read_bytes()
