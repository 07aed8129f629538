"""Writes the reference of all keys as Markdown.

``python -m trainer.config.reference > docs/configuration.md``
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

from pydantic.fields import FieldInfo

from trainer.config.availability import UNAVAILABLE
from trainer.config.base import Section
from trainer.config.judge import CommandJudge, RulerJudge
from trainer.config.models import CONFIGS
from trainer.config.schema import SectionInfo, allowed, sections, unset_meaning

_INTRODUCTION = """\
# Configuration

<!-- Written by `python -m trainer.config.reference`; change the models in trainer/config. -->

One TOML file describes a run. `[run]` names the algorithm, and the section of that name holds its
keys. A whole file for GRPO:

```toml
[run]
algorithm = "grpo"

[model]
path = "models/base.gguf"

[output]
path = "runs/adapter.gguf"

[lora]
rank = 16
alpha = 32.0

[training]
ctx = 1024
lr = 2e-5

[observe]
directory = "runs/observed"

[grpo]
prompts = "prompts.jsonl"
reward_command = ["python3", "reward.py"]
updates = 100
prompts_per_update = 4
group_size = 8
grpo_epochs = 1
clip_range_low = 0.2
clip_range_high = 0.25
kl_coefficient = 0.0

[grpo.sampling]
temperature = 1.0
top_p = 1.0
max_new_tokens = 200
seed = 7
```

- A path in the file starts from the file's folder, and `~/` from your home; a path on the command
  line starts from the working folder. Programs run in the file's folder.
- An unknown key, a section of another algorithm, a value of the wrong type or out of its range
  stops the run before it starts. Each fault is reported with its line and what is allowed.
- An integer may stand where a number is asked for. Text never stands for a number.
- A key or section marked *not available yet* is checked like the others, and then refused:
  nothing in the file is ever ignored without a word.
"""

_GROUPS = {
    "": "Every run",
    "grpo": "GRPO",
    "ppo": "PPO",
    "sft": "SFT",
}


def reference() -> str:
    """The reference as Markdown."""
    lines = [_INTRODUCTION]
    for root, title in _GROUPS.items():
        lines.append(f"## {title}\n")
        for info in _sections_of(root):
            lines.extend(_section(info))
    return "\n".join(lines).rstrip() + "\n"


def _sections_of(root: str) -> Iterator[SectionInfo]:
    seen: set[tuple[str, type[Section]]] = set()
    for info in sections(CONFIGS[root or "grpo"]):
        top, identity = info.name.partition(".")[0], (info.name, info.model)
        if identity in seen:  # what both kinds of judge have
            continue
        seen.add(identity)
        if top and (top == root if root else top not in CONFIGS):
            yield info


def _section(info: SectionInfo) -> Iterator[str]:
    kinds = {RulerJudge: ' with `type = "ruler"`', CommandJudge: ' with `type = "command"`'}
    yield f"### `[{info.name}]`{kinds.get(info.model, '')}\n"
    yield " ".join((info.model.__doc__ or "").split()) + "\n"
    if _is_unavailable(info.name):
        yield "*Not available yet.*\n"
    yield "| key | value | default | meaning |"
    yield "| --- | --- | --- | --- |"
    for key, field in sorted(info.keys.items(), key=lambda item: not item[1].is_required()):
        meaning = " ".join((field.description or "").split()) + _key_status(info.name, key)
        yield f"| `{key}` | {allowed(field)} | {_default(field)} | {meaning} |"
    yield ""


def _default(field: FieldInfo) -> str:
    meaning = unset_meaning(field)
    if meaning != "none":
        return meaning
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return meaning if value is None else f"`{json.dumps(value)}`"


def _is_unavailable(section: str) -> bool:
    """Whether the section, one around it, or its algorithm is not available."""
    parts = section.split(".")
    around = {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
    return any(
        (row.value is None and row.key in around)
        or (row.key == "run.algorithm" and row.value == parts[0])
        for row in UNAVAILABLE
    )


def _key_status(section: str, key: str) -> str:
    rows = [row for row in UNAVAILABLE if row.key == f"{section}.{key}"]
    if not rows:
        return ""
    values = [f"`{json.dumps(row.value)}`" for row in rows if row.value is not None]
    return f" *Not available yet{': ' if values else ''}{' and '.join(values)}.*"


if __name__ == "__main__":
    sys.stdout.write(reference())
