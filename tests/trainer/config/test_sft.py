from pathlib import Path

import pytest

from trainer.config import SftConfig
from trainer.config.sft import steps_of


def test_defaults_are_the_documented_ones(load):
    config = load(base="sft")
    assert isinstance(config, SftConfig)
    assert config.sft.data == config.folder / "rows.jsonl"
    assert config.sft.shuffle is True


@pytest.mark.parametrize(
    ("name", "data_format"),
    [("rows.jsonl", "jsonl"), ("ROWS.JSONL", "jsonl"), ("book.txt", "text"), ("a.text", "text")],
)
def test_the_ending_tells_the_format(load, name, data_format):
    assert load({"sft.data": f'"{name}"'}, "sft").sft.data_format == data_format


def test_a_given_format_stands(load):
    config = load({"sft.data": '"rows.log"', "sft.data_format": '"text"'}, "sft")
    assert config.sft.data_format == "text"


def test_another_ending_needs_the_format(refusal):
    message = refusal({"sft.data": '"rows.csv"'}, "sft")
    assert 'sft.data_format must be "jsonl" or "text"; it can be left out only' in message


def test_data_is_required(refusal):
    message = refusal({"sft.data": None}, "sft")
    assert "sft.data is required" in message
    assert "data_format" not in message


@pytest.mark.parametrize(
    ("own", "name", "data_format"),
    [
        ("rows.jsonl", "held.jsonl", "jsonl"),
        ("rows.jsonl", "held.txt", "text"),
        ("rows.txt", "held.JSONL", "jsonl"),
        ("rows.txt", "held.data", "text"),
    ],
)
def test_another_file_is_told_by_its_ending_or_is_like_the_data(load, own, name, data_format):
    config = load({"sft.data": f'"{own}"'}, "sft")
    assert config.sft.format_of(Path(name)) == data_format


@pytest.mark.parametrize(("texts", "steps"), [(1, 1), (8, 1), (9, 2), (16, 2), (17, 3)])
def test_an_epoch_has_as_few_steps_as_eight_texts_a_step_allow(texts, steps):
    assert steps_of(texts) == steps
