from pathlib import Path

from trainer.config.availability import UNAVAILABLE
from trainer.config.models import CONFIGS
from trainer.config.reference import reference
from trainer.config.schema import sections

COMMITTED = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_the_committed_reference_is_up_to_date():
    assert COMMITTED.read_text(encoding="utf-8") == reference()


def test_every_key_has_a_docstring_and_a_row():
    rows = {line.split(" |")[0] for line in reference().splitlines() if line.startswith("| `")}
    for config in CONFIGS.values():
        for info in sections(config):
            for key, field in info.keys.items():
                assert field.description, f"{info.name}.{key}"
                assert f"| `{key}`" in rows


def test_what_is_not_available_is_marked():
    text = reference()
    for row in UNAVAILABLE:
        section, _, key = row.key.rpartition(".")
        heading = f"### `[{row.key}]`"
        part = text.partition(heading if heading in text else f"### `[{section}]`")[2]
        part = part.partition("\n### ")[0]
        marked = part if heading in text else part.partition(f"| `{key}` |")[2].partition("\n")[0]
        assert "*Not available yet" in marked, row


def test_available_sections_are_not_marked():
    training = reference().partition("### `[training]`")[2].partition("\n### ")[0]
    assert "lr_scheduler" in training
    assert "Not available" not in training
