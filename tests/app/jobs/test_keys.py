from __future__ import annotations

import pytest
from desk import config_text

from app.jobs.keys import COMMANDS, COPIED, REFERRED, WRITTEN, kept_inside, named_files
from trainer.config import load_config
from trainer.config.base import Command, PathValue
from trainer.config.models import CONFIGS
from trainer.config.schema import sections


def keys_with(kind):
    """Every dotted key of every algorithm whose values are of ``kind``."""
    marker = kind.__metadata__[0]
    return {
        f"{section.name}.{key}"
        for config in CONFIGS.values()
        for section in sections(config)
        for key, field in section.model.model_fields.items()
        if marker in field.metadata or marker in _inner(field.annotation)
    }


def _inner(annotation):
    found = list(getattr(annotation, "__metadata__", ()))
    for part in getattr(annotation, "__args__", ()):
        found += _inner(part)
    return found


def test_each_path_of_a_configuration_is_looked_after_once():
    known = [*COPIED, *REFERRED, *WRITTEN]
    assert sorted(known) == sorted(keys_with(PathValue))


def test_each_command_is_known():
    assert set(COMMANDS) == keys_with(Command)


@pytest.mark.parametrize(
    ("words", "files"),
    [
        (["python3", "reward.py"], ["reward.py"]),
        (["./reward.sh", "--strict", "words.txt"], ["./reward.sh", "words.txt"]),
        (["score"], []),
    ],
)
def test_words_of_a_command_that_may_be_files(words, files):
    assert [n.written for n in named_files({"grpo": {"reward_command": words}})] == files


def test_whatever_a_run_writes_goes_into_its_folder(tmp_path):
    text = config_text(1, kl_coefficient="0.0\njudge_weight = 0.35")
    text = text.replace('"../runs/smoke_tiny_grpo/adapter.gguf"', '"/etc/adapter.gguf"')
    text += '\n[checkpoint]\ndirectory = "../elsewhere"\n'
    text += '\n[metrics]\ntensorboard_dir = "/var/log/board"\n'
    text += (
        '\n[grpo.judge]\ntype = "ruler"\nbase_url = "http://127.0.0.1:1/v1"\nmodel = "m"\n'
        'cache_path = "~/cache.jsonl"\n'
    )
    (tmp_path / "run.toml").write_text(text)
    config = kept_inside(load_config(tmp_path / "run.toml"), tmp_path)
    places = [
        config.output.path,
        config.checkpoint.directory,
        config.observe.directory,
        config.grpo.judge.cache_path,
        config.metrics.tensorboard_dir,
    ]
    assert all(place.is_relative_to(tmp_path / "output") for place in places)


def test_texts_are_kept_without_being_asked_for(tmp_path):
    text = config_text(1)
    (tmp_path / "run.toml").write_text(text[: text.index("[observe]")])
    config = kept_inside(load_config(tmp_path / "run.toml"), tmp_path)
    assert config.observe is not None
    assert config.observe.directory is None
