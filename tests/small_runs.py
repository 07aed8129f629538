"""Small GRPO runs: their files, reward programs whose rewards the test chooses, and a watcher."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np

from trainer.algorithms.groups import Group, form_group
from trainer.chat.messages import Message, Prompt, PromptLine
from trainer.config import GrpoConfig, load_config
from trainer.inputs import read_inputs
from trainer.monitor.base import SilentMonitor
from trainer.monitor.protocol import Event, GroupRecord, Outcome, RunInfo, Stage, UpdateStatus
from trainer.reward.program import RewardReply
from trainer.rollout.answers import Answer
from trainer.run import run
from trainer.session import Session, open_session

SMALL: Mapping[str, int] = {
    "layers": 1,
    "width": 32,
    "ff_width": 48,
    "heads": 4,
    "kv_heads": 2,
    "head_size": 8,
    "context": 64,
}
"""The shape of a random model that trains in milliseconds."""

# The loop around `score(batch, index, request)`, which gives a number or a whole reply. A batch is
# an update, counted from 1, and an index counts its answers, group after group.
SERVE = """
import json, sys
ECHO = ("_retrograd_batch", "_retrograd_index")
for line in sys.stdin:
    message = json.loads(line)
    if "completion" in message:
        batch, index = (message[name] for name in ECHO)
        reply = score(batch, index, message)
        reply = reply if isinstance(reply, dict) else {"reward": reply}
        message = reply | {name: message[name] for name in ECHO}
    print(json.dumps(message), flush=True)
"""

DEFAULTS: Mapping[str, object] = {
    "run.algorithm": "grpo",
    "output.path": "adapter.gguf",
    "lora.rank": 2,
    "lora.alpha": 4.0,
    "lora.dtype": "f32",
    "training.ctx": 48,
    "training.lr": 0.01,
    "training.micro_batch": 256,
    "training.rollout_weights": "f32",
    "training.fast_sampling_context": False,
    "training.importance_correction": "off",
    "training.threads": 1,
    "grpo.prompts": "prompts.jsonl",
    "grpo.reward_command": ["python3", "reward.py"],
    "grpo.updates": 1,
    "grpo.prompts_per_update": 1,
    "grpo.group_size": 4,
    "grpo.grpo_epochs": 1,
    "grpo.clip_range_low": 0.2,
    "grpo.clip_range_high": 0.28,
    "grpo.kl_coefficient": 0.0,
    "grpo.sampling.temperature": 1.0,
    "grpo.sampling.top_p": 1.0,
    "grpo.sampling.max_new_tokens": 6,
    "grpo.sampling.seed": 42,
}


def rewards(*updates: Sequence[float]) -> str:
    """A program that gives these rewards to the answers of each update, and starts again after the
    last of them."""
    return f"TABLE = {[list(u) for u in updates]!r}\n" + (
        "def score(batch, index, request):\n"
        "    row = TABLE[(batch - 1) % len(TABLE)]\n"
        "    return row[index % len(row)]\n"
    )


def write_run(
    folder: Path,
    model: Path,
    reward: str,
    changes: Mapping[str, object] | None = None,
    *,
    prompts: Sequence[str] = ("hello",),
) -> GrpoConfig:
    """Write configuration, prompts and reward program into ``folder``. ``changes`` go by dotted
    key; None removes a key."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"messages": [{"role": "user", "content": p}]}) for p in prompts]
    (folder / "prompts.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder / "reward.py").write_text(reward + SERVE, encoding="utf-8")
    sections: dict[str, list[str]] = {}
    for dotted, value in {**DEFAULTS, "model.path": str(model), **(changes or {})}.items():
        section, _, key = dotted.rpartition(".")
        if value is not None:
            sections.setdefault(section, [f"[{section}]"]).append(f"{key} = {json.dumps(value)}")
    path = folder / "run.toml"
    path.write_text("\n".join("\n".join(lines) for lines in sections.values()), encoding="utf-8")
    config = load_config(path)
    assert isinstance(config, GrpoConfig)
    return config


def end_often(model: Path) -> Path:
    """Make the end token of a random model stand out, so that some of its answers end early."""
    reader = gguf.GGUFReader(model, "r+")
    weights = {t.name: t for t in reader.tensors}["output.weight"].data
    weights[reader.fields["tokenizer.ggml.eos_token_id"].contents()] *= 6.0
    weights.flush()
    return model


@dataclass
class Recorder(SilentMonitor):
    """Keeps what a run says, in order. It asks the run to stop once it has heard ``stop_at``."""

    stop_at: str | None = None
    calls: list[str] = field(default_factory=list)
    info: RunInfo | None = None
    events: list[Event] = field(default_factory=list)
    groups: dict[int, Sequence[GroupRecord]] = field(default_factory=dict)
    values: dict[int, Mapping[str, float]] = field(default_factory=dict)
    status: dict[int, UpdateStatus] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)

    def run_started(self, info: RunInfo) -> None:
        self.calls.append("run_started")
        self.info = info

    def progress(self, stage: Stage, done: int, total: int) -> None:
        self.calls.append(f"{stage} {done}/{total}")

    def trajectories(self, update: int, groups: Sequence[GroupRecord]) -> None:
        self.calls.append(f"trajectories {update}")
        self.groups[update] = groups

    def metrics(self, update: int, status: UpdateStatus, values: Mapping[str, float]) -> None:
        self.calls.append(f"metrics {update}")
        self.status[update], self.values[update] = status, values

    def event(self, event: Event) -> None:
        self.calls.append(f"event {event.code}")
        self.events.append(event)

    def run_finished(self, outcome: Outcome) -> None:
        self.calls.append("run_finished")
        self.outcomes.append(outcome)

    def should_stop(self) -> bool:
        return self.stop_at in self.calls

    @property
    def outcome(self) -> Outcome:
        assert len(self.outcomes) == 1, "a run ends once"
        return self.outcomes[0]

    def messages(self, code: str) -> list[str]:
        return [event.message for event in self.events if event.code == code]

    def advantages(self, update: int) -> list[list[float]]:
        return [[t.advantage for t in group.trajectories] for group in self.groups[update]]


def train(
    folder: Path,
    model: Path,
    reward: str,
    changes: Mapping[str, object] | None = None,
    *,
    prompts: Sequence[str] = ("hello",),
    stop_at: str | None = None,
) -> Recorder:
    """Write a run, make it, and return what it said."""
    recorder = Recorder(stop_at)
    outcome = run(write_run(folder, model, reward, changes, prompts=prompts), recorder)
    assert outcome == recorder.outcome
    return recorder


@contextmanager
def opened(config: GrpoConfig, monitor: Recorder | None = None) -> Iterator[Session]:
    """The parts of a run, not started."""
    with ExitStack() as stack:
        yield open_session(config, read_inputs(config), monitor or Recorder(), stack)


def exported(path: Path | str) -> dict[str, np.ndarray]:
    """The factors in an adapter file, read by the gguf package."""
    return {t.name: np.array(t.data) for t in gguf.GGUFReader(path).tensors}


def answer(
    *tokens: int, finished: bool = True, logprobs: Sequence[float] | None = None, text: str = ""
) -> Answer:
    return Answer(
        tokens=np.array(tokens, np.int32),
        logprobs=np.array(logprobs if logprobs is not None else [-1.0] * len(tokens), np.float32),
        finished=finished,
        text=text,
    )


def group(
    config: GrpoConfig,
    scores: Sequence[float],
    answers: Sequence[Answer] | None = None,
    *,
    index: int = 0,
    prompt: Sequence[int] = (72, 105),
    parts: Sequence[Mapping[str, float]] | None = None,
) -> Group:
    """The group that these rewards of the program make; without ``answers`` each has one token."""
    line = PromptLine(index + 1, (Message("user", "Hi"),), {}, None, f"key-{index}")
    replies = [
        RewardReply(score, parts[i] if parts else {}, None) for i, score in enumerate(scores)
    ]
    own = answers or [answer(i) for i in range(len(scores))]
    return form_group(index, Prompt(line, tuple(prompt)), own, replies, config.grpo)
