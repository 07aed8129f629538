"""The files of small runs of the bundled tiny model, as a person has them in a folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
TINY = ROOT / "examples" / "tiny" / "tiny.gguf"
REWARD = ROOT / "examples" / "smoke_rl_reward.py"

WORD = "zanzibar"
"""In one prompt of each run, to be looked for."""

_DEFAULTS: Mapping[str, object] = {
    "run.algorithm": "grpo",
    "model.path": "tiny.gguf",
    "output.path": "adapter.gguf",
    "lora.rank": 4,
    "lora.alpha": 8.0,
    "training.ctx": 64,
    "training.lr": 0.0008,
    "training.threads": 1,
    "grpo.prompts": "prompts.jsonl",
    "grpo.reward_command": ["python3", "reward.py"],
    "grpo.updates": 8,
    "grpo.prompts_per_update": 2,
    "grpo.group_size": 4,
    "grpo.grpo_epochs": 1,
    "grpo.clip_range_low": 0.2,
    "grpo.clip_range_high": 0.28,
    "grpo.kl_coefficient": 0.0,
    "grpo.sampling.temperature": 1.0,
    "grpo.sampling.top_p": 1.0,
    "grpo.sampling.max_new_tokens": 12,
    "grpo.sampling.seed": 42,
}
BROKEN_AFTER_A_WHILE = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("_retrograd_batch", 0) > 2 and "completion" in message:
        print("the grader's licence has run out", file=sys.stderr, flush=True)
        sys.exit(3)
    if "completion" in message:
        names = ("_retrograd_batch", "_retrograd_index")
        message = {"reward": len(message["completion"]) % 3, **{n: message[n] for n in names}}
    print(json.dumps(message), flush=True)
"""
"""A reward program that dies at the third update, with its last words on stderr."""
UNHURRIED = """
import json, sys, time
ECHOED = ("_retrograd_batch", "_retrograd_index")

def score(message):
    if message["_retrograd_batch"] % 3 == 0:
        return 0.5  # nothing to learn from
    return round(0.1 * (1 + message["_retrograd_index"] % 8), 2)

for line in sys.stdin:
    message = json.loads(line)
    if "completion" in message:
        message = {"reward": score(message), **{name: message[name] for name in ECHOED}}
    elif "_retrograd_batch_end" in message:
        time.sleep(0.25)
    print(json.dumps(message), flush=True)
"""
"""A reward program that lets people look on, whose every third update has no signal. The rewards
of the others go from 0.1 to 0.8."""


@dataclass(frozen=True, slots=True)
class RunFiles:
    """What belongs to a run, in one folder."""

    config: Path
    prompts: Path
    reward: Path

    @property
    def folder(self) -> Path:
        return self.config.parent

    @property
    def dropped(self) -> list[Path]:
        """What a person drops on the page; the model lies in the server's workspace."""
        return [self.config, self.prompts, self.reward]


def write_run(
    folder: Path,
    changes: Mapping[str, object] | None = None,
    *,
    name: str = "addition",
    reward: str | None = None,
    questions: int = 24,
) -> RunFiles:
    """``changes`` to the configuration go by dotted key; None removes a key."""
    folder.mkdir(parents=True, exist_ok=True)
    prompts = folder / "prompts.jsonl"
    lines = [
        {"messages": [{"role": "user", "content": f"Add {n % 6} and {n % 4 + 1}."}]}
        for n in range(questions)
    ]
    lines[1] = {"messages": [{"role": "user", "content": f"In {WORD}: what is 2 and 3?"}]}
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    program = folder / "reward.py"
    program.write_text(reward or REWARD.read_text(encoding="utf-8"), encoding="utf-8")
    values = {**_DEFAULTS, "run.name": name, **(changes or {})}
    config = folder / "grpo.toml"
    config.write_text(as_toml(values), encoding="utf-8")
    return RunFiles(config, prompts, program)


def put_model(folder: Path) -> None:
    """Where a server looks for what a configuration names and nobody uploaded."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(TINY, folder / TINY.name)


def as_toml(values: Mapping[str, object]) -> str:
    sections: dict[str, list[str]] = {}
    for dotted, value in values.items():
        section, _, key = dotted.rpartition(".")
        if value is not None:
            sections.setdefault(section, [f"[{section}]"]).append(f"{key} = {json.dumps(value)}")
    return "\n".join("\n".join(lines) for lines in sections.values()) + "\n"
