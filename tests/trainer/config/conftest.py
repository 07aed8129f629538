"""A whole configuration for each algorithm, and ways to load them with some keys changed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.config import Overrides, RunConfig, load_config
from trainer.errors import ConfigError

GRPO = """\
[run]
algorithm = "grpo"

[output]
path = "trained.gguf"

[model]
path = "base.gguf"

[lora]
rank = 8
alpha = 32.0

[training]
lr = 0.00002
ctx = 512

[grpo]
reward_command = ["python3", "reward.py"]
prompts = "prompts.jsonl"
group_size = 8
prompts_per_update = 5
grpo_epochs = 4
updates = 20
kl_coefficient = 0.0
clip_range_low = 0.2
clip_range_high = 0.25
mask_truncated = true

[grpo.sampling]
seed = 7
max_new_tokens = 128
temperature = 1.0
top_p = 1.0
"""

PPO = """\
[run]
algorithm = "ppo"

[output]
path = "trained.gguf"

[model]
path = "base.gguf"

[lora]
alpha = 32.0
rank = 8

[training]
lr = 0.00002
ctx = 512

[ppo]
reward_command = ["python3", "reward.py"]
prompts = "prompts.jsonl"
rollout_batch_size = 8
ppo_epochs = 3
updates = 30
kl_coefficient = 0.02
clip_range = 0.1

[ppo.sampling]
seed = 7
max_new_tokens = 128
temperature = 0.9
top_p = 0.95
"""

SFT = """\
[run]
algorithm = "sft"

[model]
path = "base.gguf"

[output]
path = "trained.gguf"

[sft]
data = "rows.jsonl"
"""

TEXTS = {"grpo": GRPO, "ppo": PPO, "sft": SFT}
Changes = dict[str, str | None]


def changed(text: str, changes: Changes) -> str:
    """``text`` with dotted keys set to raw TOML, or removed where the change is none. A key of
    which only the section is given ends in a dot."""
    sections: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), {})
        elif line:
            key, _, value = line.partition(" = ")
            section[key] = value
    for dotted, value in changes.items():
        name, _, key = dotted.rpartition(".")
        section = sections.setdefault(name, {})
        if value is None:
            section.pop(key, None)
        elif key:
            section[key] = value
    lines = []
    for name, keys in sections.items():
        lines += [f"[{name}]", *(f"{key} = {value}" for key, value in keys.items()), ""]
    return "\n".join(lines)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def _write(text: str, name: str = "run.toml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return _write


@pytest.fixture
def load(write: Callable[..., Path]) -> Callable[..., RunConfig]:
    """Loads a configuration with changes, given as raw TOML by dotted key."""

    def _load(
        changes: Changes | None = None,
        base: str = "grpo",
        overrides: Overrides | None = None,
    ) -> RunConfig:
        return load_config(write(changed(TEXTS[base], changes or {})), overrides)

    return _load


@pytest.fixture
def refusal(load: Callable[..., RunConfig]) -> Callable[..., str]:
    """The message with which a changed configuration is refused."""

    def _refusal(changes: Changes, base: str = "grpo") -> str:
        with pytest.raises(ConfigError) as caught:
            load(changes, base)
        return str(caught.value)

    return _refusal


@pytest.fixture
def text_of() -> dict[str, str]:
    return TEXTS
