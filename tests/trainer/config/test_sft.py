import pytest

from trainer.config import SftConfig


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
