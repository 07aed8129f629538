from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

CONFIG = """\
[run]
algorithm = "grpo"

[model]
path = "base.gguf"

[output]
path = "out/adapter.gguf"

[training]
ctx = 64

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
reward_mode = "oneshot"

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
path = "out/adapter.gguf"

[training]
ctx = 64
threads = 1

[audit]
enabled = false

[ppo]
prompts = "prompts.jsonl"
reward_command = ["python3", "reward.py"]
updates = 3
rollout_batch_size = 4
minibatches = 2
ppo_epochs = 1
clip_range = 0.2
kl_coefficient = 0.05
kl_anchor = "reference"
reward_mode = "oneshot"

[ppo.sampling]
temperature = 1.0
top_p = 1.0
max_new_tokens = 8
seed = 42
"""

REWARD = """\
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    print("scored", file=sys.stderr)
    right = request["metadata"].get("answer")
    print(json.dumps({"reward": 1.0 if request["completion"] == right else 0.0}))
"""


@pytest.fixture
def project(tmp_path) -> Callable[..., Path]:
    """Writes a configuration with its prompts and reward program; the TOML's path."""

    def write(config: str = CONFIG, reward: str = REWARD, **metadata: object) -> Path:
        lines = [
            {"messages": [{"role": "user", "content": question}], **metadata}
            for question in ("2+3?", "4+4?", "1+1?")
        ]
        (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
        (tmp_path / "reward.py").write_text(reward)
        path = tmp_path / "grpo.toml"
        path.write_text(config)
        return path

    return write


@pytest.fixture(scope="session")
def config_text() -> str:
    return CONFIG


@pytest.fixture(scope="session")
def ppo_text() -> str:
    return PPO
