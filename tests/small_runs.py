"""Small runs of GRPO, PPO and SFT: their files, reward programs whose rewards the test chooses, a
watcher, and their parts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
import pytest
import torch

from trainer.algorithms.episodes import Episode, form_episode
from trainer.algorithms.groups import Group, form_group
from trainer.chat.messages import Message, Prompt, PromptLine
from trainer.config import GrpoConfig, RolloutConfig, RunConfig, SftConfig, load_config
from trainer.gguf.tensors import select_targets
from trainer.inputs import read_any
from trainer.model.adapter import Adapter
from trainer.model.decoder import Decoder
from trainer.model.learner import Learner, Loss, OptimizerSettings, Passes, PassSettings
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

COMMON: Mapping[str, object] = {
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
}

DEFAULTS: Mapping[str, object] = {
    "run.algorithm": "grpo",
    **COMMON,
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

PPO: Mapping[str, object] = {
    "run.algorithm": "ppo",
    **COMMON,
    "ppo.prompts": "prompts.jsonl",
    "ppo.reward_command": ["python3", "reward.py"],
    "ppo.updates": 1,
    "ppo.rollout_batch_size": 4,
    "ppo.ppo_epochs": 1,
    "ppo.clip_range": 0.2,
    "ppo.kl_coefficient": 0.0,
    "ppo.minibatches": 1,
    "ppo.sampling.temperature": 1.0,
    "ppo.sampling.top_p": 1.0,
    "ppo.sampling.max_new_tokens": 6,
    "ppo.sampling.seed": 42,
}
SFT: Mapping[str, object] = {
    "run.algorithm": "sft",
    **{k: v for k, v in COMMON.items() if k != "training.importance_correction"},
    "sft.data": "texts.jsonl",
}
"""What a run of the one or the other algorithm is made of, as ``base`` of the functions below."""


def rewards(*updates: Sequence[float]) -> str:
    """A program that gives these rewards to the answers of each update, and starts again after the
    last of them."""
    return f"TABLE = {[list(u) for u in updates]!r}\n" + (
        "def score(batch, index, request):\n"
        "    row = TABLE[(batch - 1) % len(TABLE)]\n"
        "    return row[index % len(row)]\n"
    )


TALKS: Sequence[Sequence[str]] = (
    ("one", "a"),
    ("two three", "bcde in f"),
    ("four", "no", "five in six", "yes it is"),
    ("in", "ggg"),
    ("seven", "a rather longer answer"),
    ("eight nine", "h"),
    ("ten", "iii", "and", "jj in"),
    ("eleven", "k"),
    ("twelve in", "lm"),
    ("thirteen", "nnnn"),
)
"""What user and assistant say by turns, of very different lengths."""


def talk(turns: Sequence[str]) -> str:
    """A line of a data file: user and assistant by turns."""
    messages = [
        {"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(turns)
    ]
    return json.dumps({"messages": messages})


def write_texts(
    folder: Path,
    model: Path,
    changes: Mapping[str, object] | None = None,
    *,
    talks: Sequence[Sequence[str]] = TALKS,
) -> SftConfig:
    """Write configuration and texts of a run of SFT into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "texts.jsonl").write_text("\n".join(map(talk, talks)), encoding="utf-8")
    config = _write_toml(folder, model, changes, SFT)
    assert isinstance(config, SftConfig)
    return config


def teach(
    folder: Path,
    model: Path,
    changes: Mapping[str, object] | None = None,
    *,
    talks: Sequence[Sequence[str]] = TALKS,
    stop_at: str | None = None,
) -> Recorder:
    """Write a run of SFT, make it, and return what it said."""
    recorder = Recorder(stop_at)
    outcome = run(write_texts(folder, model, changes, talks=talks), recorder)
    assert outcome == recorder.outcome
    return recorder


def write_run(
    folder: Path,
    model: Path,
    reward: str,
    changes: Mapping[str, object] | None = None,
    *,
    prompts: Sequence[str] = ("hello",),
    base: Mapping[str, object] = DEFAULTS,
) -> RolloutConfig:
    """Write configuration, prompts and reward program into ``folder``. ``changes`` to ``base`` go
    by dotted key; None removes a key."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"messages": [{"role": "user", "content": p}]}) for p in prompts]
    (folder / "prompts.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder / "reward.py").write_text(reward + SERVE, encoding="utf-8")
    config = _write_toml(folder, model, changes, base)
    assert isinstance(config, RolloutConfig)
    return config


def _write_toml(
    folder: Path, model: Path, changes: Mapping[str, object] | None, base: Mapping[str, object]
) -> RunConfig:
    sections: dict[str, list[str]] = {}
    for dotted, value in {**base, "model.path": str(model), **(changes or {})}.items():
        section, _, key = dotted.rpartition(".")
        if value is not None:
            sections.setdefault(section, [f"[{section}]"]).append(f"{key} = {json.dumps(value)}")
    path = folder / "run.toml"
    path.write_text("\n".join("\n".join(lines) for lines in sections.values()), encoding="utf-8")
    return load_config(path)


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
    held_out: dict[int, Sequence[GroupRecord]] = field(default_factory=dict)
    evaluations: dict[int, Mapping[str, float]] = field(default_factory=dict)
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

    def evaluation(
        self, update: int, groups: Sequence[GroupRecord], values: Mapping[str, float]
    ) -> None:
        self.calls.append(f"evaluation {update}")
        self.held_out[update], self.evaluations[update] = groups, values

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
    base: Mapping[str, object] = DEFAULTS,
) -> Recorder:
    """Write a run, make it, and return what it said."""
    recorder = Recorder(stop_at)
    config = write_run(folder, model, reward, changes, prompts=prompts, base=base)
    outcome = run(config, recorder)
    assert outcome == recorder.outcome
    return recorder


@contextmanager
def opened(config: RunConfig, monitor: Recorder | None = None) -> Iterator[Session]:
    """The parts of a run, not started."""
    with ExitStack() as stack:
        yield open_session(config, read_any(config), monitor or Recorder(), stack, "a-run")


def spoil_from(monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """Make every loss of a run infinite, from the training pass ``call`` (counted from 1) on."""
    accumulate, calls = Learner._accumulate, 0

    def spoilt(self: Learner, passes: Passes, loss: Loss) -> float:
        nonlocal calls
        calls += 1
        infinite = calls >= call
        return accumulate(self, passes, lambda out: loss(out) * (math.inf if infinite else 1.0))

    monkeypatch.setattr(Learner, "_accumulate", spoilt)


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
    replies = [
        RewardReply(score, parts[i] if parts else {}, None) for i, score in enumerate(scores)
    ]
    own = answers or [answer(i) for i in range(len(scores))]
    return form_group(index, _prompt(index, prompt), own, replies, config.grpo)


def episode(
    score: float, own: Answer, *, index: int = 0, prompt: Sequence[int] = (72, 105)
) -> Episode:
    """An answer with the program's reward, as PPO begins with it."""
    return form_episode(index, _prompt(index, prompt), [own], [RewardReply(score, {}, None)])


def _prompt(index: int, tokens: Sequence[int]) -> Prompt:
    line = PromptLine(index + 1, (Message("user", "Hi"),), {}, None, f"key-{index}")
    return Prompt(line, tuple(tokens))


def adapter_on(decoder: Decoder, *, moved: bool = True) -> Adapter:
    """An adapter of every matrix; ``moved`` gives it a B that is not zero."""
    names = select_targets(decoder.architecture, ["auto"])
    cpu = torch.device("cpu")
    adapter = Adapter(decoder.architecture, names, rank=2, alpha=4.0, seed=0, device=cpu)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for _, B in adapter.factors.values():
            B.copy_(torch.randn(B.shape, generator=generator) * 0.05 * moved)
    return adapter


def learner_on(
    decoder: Decoder,
    *,
    adapter: Adapter | None = None,
    kind: Literal["adamw", "sgd"] = "sgd",
    weight_decay: float = 0.0,
    max_grad_norm: float = 1.0,
    temperature: float = 1.0,
    on_fallback: Callable[[str], None] = lambda _: None,
    **cut: Any,
) -> Learner:
    """A learner whose adapter has moved already; ``cut`` is how passes are cut."""
    settings = {"micro_batch": 256, "fanout": "auto", "recompute": False, "chunk": 512} | cut
    return Learner(
        decoder,
        adapter or adapter_on(decoder),
        PassSettings(**settings, temperature=temperature),
        OptimizerSettings(kind, weight_decay, max_grad_norm),
        on_fallback=on_fallback,
    )


PROMPT = (72, 105, 44, 32, 87)
LENGTHS = (5, 1, 3, 5)


def sampled(
    config: GrpoConfig, *, index: int = 0, scores: Sequence[float] = (0.0, 1.0, 0.5, 2.0)
) -> Group:
    """A group of answers of `LENGTHS` random tokens to `PROMPT`; ``index`` is the seed too."""
    rng = np.random.default_rng(index)
    answers = [
        answer(*rng.integers(0, 250, n).tolist(), logprobs=(-4.0 - rng.random(n)).tolist())
        for n in LENGTHS
    ]
    return group(config, scores, answers, index=index, prompt=PROMPT)
