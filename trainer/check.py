"""Everything that can be known about a run before it trains."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal

import numpy as np
import torch

from trainer.agreement import Parity
from trainer.algorithms.collect import Collector
from trainer.algorithms.groups import Group
from trainer.algorithms.stopwatch import Stopwatch
from trainer.config import GrpoConfig, RunConfig, notes, refuse_unavailable
from trainer.device import choose_device
from trainer.errors import ConfigError, RetrogradError
from trainer.inputs import Inputs, coverage, read_inputs
from trainer.model.decoder import Decoder
from trainer.reward.program import RewardProgram, RewardRequest
from trainer.rollout.engine import RolloutEngine
from trainer.session import (
    check_fanout,
    check_output,
    micro_batch_of,
    new_adapter,
    open_engine,
    open_reward,
    prompt_order,
    rollout_weights,
    threads_of,
)
from trainer.sizing import (
    activation_bytes,
    available_bytes,
    cache_bytes,
    trained_weights_bytes,
)

_MIB = 1 << 20
_MADE_UP_ANSWER = "A made-up answer."
_FEW_SIGNALS = 0.25
_MANY_CUT = 0.5
_SHOWN_GROUPS = 3
_SHOWN_CHARACTERS = 100


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; an ``error`` would stop the run."""

    level: Literal["ok", "warning", "error"]
    title: str
    detail: str


@dataclass(slots=True)
class CheckReport:
    findings: list[Finding] = field(default_factory=list)

    def ok(self, title: str, detail: str) -> None:
        self.findings.append(Finding("ok", title, detail))

    def warning(self, title: str, detail: str) -> None:
        self.findings.append(Finding("warning", title, detail))

    def step(self, title: str) -> _Step:
        """Turn a refusal inside into a finding, so that later steps are looked at as well."""
        return _Step(self, title)


@dataclass(frozen=True, slots=True)
class _Step:
    report: CheckReport
    title: str

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, RetrogradError):
            return False
        self.report.findings.append(Finding("error", self.title, str(error)))
        return True


def check(config: RunConfig, *, sample: int = 0) -> CheckReport:
    """Look at everything that a run of ``config`` needs. Nothing is written but the output's
    folder and cached weights.

    ``sample`` groups are sampled from the base model and scored, and the spread of their rewards
    tells whether there is anything to learn from.
    """
    refuse_unavailable(config)
    if not isinstance(config, GrpoConfig):
        raise ConfigError(f"{config.source}: only GRPO can be checked.")
    report = CheckReport()
    for note in notes(config):
        report.warning("configuration", note)
    torch.set_num_threads(threads_of(config))
    with ExitStack() as stack:
        inputs = _check_inputs(config, report)
        reward = _check_reward(config, inputs, report, stack)
        _check_output(config, report)
        if inputs is None:
            missing = "adapter, reward program, memory, sampler"
            report.warning("not looked at", f"{missing}: they need the model and the prompts")
        else:
            _check_memory(config, inputs, report)
            engine = _check_agreement(config, inputs, report, stack)
            if sample and engine is not None and reward is not None:
                _sample(config, inputs, engine, reward, sample, report)
    return report


def _check_inputs(config: GrpoConfig, report: CheckReport) -> Inputs | None:
    with report.step("model and prompts"):
        inputs = read_inputs(config)
        a = inputs.architecture
        report.ok(
            "model",
            f"{config.model.path}: {a.name}, {a.layers} layers of {a.width}, vocabulary "
            f"{a.vocabulary:,}",
        )
        longest = inputs.longest_prompt
        answer = config.grpo.sampling.max_new_tokens
        report.ok(
            "prompts",
            f"{len(inputs.prompts)} prompts of at most {longest} tokens; with answers of "
            f"{answer} the longest takes {longest + answer} of ctx = {config.training.ctx}",
        )
        size = inputs.adapter_size(config.lora.rank)
        report.ok("adapter", f"rank {config.lora.rank} on {coverage(inputs)}: {size:,} parameters")
        return inputs
    return None


def _check_reward(
    config: GrpoConfig, inputs: Inputs | None, report: CheckReport, stack: ExitStack
) -> RewardProgram | None:
    """Start the program and let it score one made-up answer, as a run would."""
    with report.step("reward program"):
        program = stack.enter_context(open_reward(config))
        if inputs is None:
            return None
        start = time.perf_counter()
        (reply,) = program.score([RewardRequest(inputs.prompts[0].line, _MADE_UP_ANSWER)])
        report.ok(
            "reward program",
            f"{shlex.join(config.grpo.reward_command)} gave {reply.reward:g} to the answer "
            f"{_MADE_UP_ANSWER!r} in {time.perf_counter() - start:.2f} s",
        )
        return program
    return None


def _check_output(config: GrpoConfig, report: CheckReport) -> None:
    path = config.output.path
    with report.step("output"):
        check_output(config)
        if path.exists():
            report.warning("output", f"{path} exists, and the run would replace it")
        else:
            report.ok("output", str(path))


def _check_memory(config: GrpoConfig, inputs: Inputs, report: CheckReport) -> None:
    a, training, section = inputs.architecture, config.training, config.grpo
    answer = section.sampling.max_new_tokens
    group = inputs.longest_prompt + section.group_size * answer
    rows = min(micro_batch_of(config, a), group)
    chunk = min(training.ce_chunk_tokens, rows) if training.chunked_cross_entropy else rows
    base = trained_weights_bytes(a)
    sampled = {"file": inputs.file.path.stat().st_size, "f32": base}.get(
        training.rollout_weights, base // 2
    )
    running = section.prompts_per_update * section.group_size
    cells = running * answer + section.prompts_per_update * inputs.longest_prompt
    parts = {
        "base in F32": base,
        "weights for sampling": sampled,
        "sampler's cache": cache_bytes(a, cells, exact=not training.fast_sampling_context),
        f"one pass of {rows} tokens": activation_bytes(
            a, rows, recompute=training.gradient_checkpointing
        ),
        "logits": 4 * chunk * a.vocabulary,
        # the factors, their gradient, and the two moments of AdamW
        "adapter": 4 * 4 * inputs.adapter_size(config.lora.rank),
    }
    total, free = sum(parts.values()), available_bytes()
    words = ", ".join(f"{name} {size // _MIB:,} MiB" for name, size in parts.items())
    detail = f"about {total // _MIB:,} MiB of {free // _MIB:,} MiB free: {words}"
    if total > free:
        advice = "Lower micro_batch, turn on gradient_checkpointing, or use a smaller model."
        report.warning("memory", f"{detail}. {advice}")
    else:
        report.ok("memory", detail)


def _check_agreement(
    config: GrpoConfig, inputs: Inputs, report: CheckReport, stack: ExitStack
) -> RolloutEngine | None:
    """Give llama.cpp an adapter that changes the model, and see that both sides change alike."""
    with report.step("sampler and trainer"):
        check_fanout(config, inputs)
        weights = rollout_weights(config, inputs)
        engine = stack.enter_context(open_engine(config, inputs, weights))
        decoder = Decoder(
            inputs.file, choose_device(config.model.device), context=config.training.ctx
        )
        adapter = new_adapter(config, inputs, decoder.device)
        result = Parity(inputs.prompts[0].tokens, decoder, engine, weights.kind).probe(adapter)
        report.ok(
            "sampler and trainer",
            f"sampling from {weights.kind} weights ({weights.reason}); a random adapter changes "
            f"both sides by {result.change:.2g} nats a token, and they differ by {result.gap:.2g}",
        )
        return engine
    return None


def _sample(
    config: GrpoConfig,
    inputs: Inputs,
    engine: RolloutEngine,
    reward: RewardProgram,
    count: int,
    report: CheckReport,
) -> None:
    """Sample groups from the base, as the first update would, and describe their rewards."""
    with report.step("reward spread"):
        collector = Collector(config.grpo, prompt_order(config, inputs), engine, reward)
        groups = collector.groups(1, count, Stopwatch())
        _describe(config, groups, report)


def _describe(config: GrpoConfig, groups: Sequence[Group], report: CheckReport) -> None:
    rewards = torch.cat([g.rewards for g in groups])
    share = sum(g.trainable for g in groups) / len(groups)
    cut = float(np.mean([a.truncated for g in groups for a in g.answers]))
    detail = (
        f"{len(groups)} groups of {config.grpo.group_size} from the base: mean "
        f"{float(rewards.mean()):.3f}, from {float(rewards.min()):.3g} to "
        f"{float(rewards.max()):.3g}; {share:.0%} of the groups carry signal; {cut:.0%} of the "
        f"answers are cut at {config.grpo.sampling.max_new_tokens} tokens"
    )
    if share == 0:
        report.warning(
            "reward spread",
            f"{detail}. No group has two different rewards, so GRPO cannot learn from this. Give "
            f"partial credit, or change the prompts.",
        )
    elif share < _FEW_SIGNALS:
        advice = "Few groups can teach anything: give partial credit, or raise group_size."
        report.warning("reward spread", f"{detail}. {advice}")
    elif cut > _MANY_CUT:
        advice = "Raise max_new_tokens, unless the reward can judge an answer that is cut."
        report.warning("reward spread", f"{detail}. {advice}")
    else:
        report.ok("reward spread", detail)
    report.ok("sample answers", "\n".join(_examples(groups)))


def _examples(groups: Sequence[Group]) -> list[str]:
    """The best and the worst answer of the first groups."""
    lines = []
    for group in groups[:_SHOWN_GROUPS]:
        order = torch.argsort(group.rewards, stable=True).tolist()
        for which, i in (("best", order[-1]), ("worst", order[0])):
            text = group.answers[i].text.replace("\n", "⏎")[:_SHOWN_CHARACTERS]
            lines.append(f"{which} {float(group.rewards[i]):.3g}: {text!r}")
    return lines
