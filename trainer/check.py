"""Everything that can be known about a run before it trains."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal

import numpy as np
import torch

from trainer.agreement import Bench
from trainer.algorithms.groups import Group, form_group
from trainer.algorithms.order import PromptOrder
from trainer.config import GrpoConfig, RunConfig, notes, refuse_unavailable
from trainer.device import choose_device
from trainer.errors import ConfigError, RetrogradError
from trainer.export import check_writable
from trainer.inputs import Inputs, coverage, read_inputs
from trainer.model.decoder import Decoder
from trainer.reward.program import RewardProgram, RewardRequest, open_reward_program
from trainer.rollout.engine import RolloutEngine
from trainer.rollout.seeds import answer_seed
from trainer.session import (
    check_fanout,
    new_adapter,
    open_engine,
    open_learner,
    rollout_weights,
)
from trainer.sizing import (
    activation_bytes,
    auto_micro_batch,
    available_bytes,
    default_threads,
    trained_weights_bytes,
)

_MIB = 1 << 20
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
    """Look at everything that a run of ``config`` needs; nothing is written but cached weights.

    ``sample`` groups are sampled from the base model and scored, and the spread of their rewards
    tells whether there is anything to learn from.
    """
    refuse_unavailable(config)
    if not isinstance(config, GrpoConfig):
        raise ConfigError(f"{config.source}: only GRPO can be checked.")
    report = CheckReport()
    for note in notes(config):
        report.warning("configuration", note)
    torch.set_num_threads(config.training.threads or default_threads())
    with ExitStack() as stack:
        reward = _check_reward(config, report, stack)
        inputs = _check_inputs(config, report)
        _check_output(config, report)
        if inputs is not None:
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
        shapes = [inputs.file.tensors[name].shape for name in inputs.targets]
        size = sum(config.lora.rank * (rows + columns) for rows, columns in shapes)
        report.ok("adapter", f"rank {config.lora.rank} on {coverage(inputs)}: {size:,} parameters")
        return inputs
    return None


def _check_reward(
    config: GrpoConfig, report: CheckReport, stack: ExitStack
) -> RewardProgram | None:
    with report.step("reward program"):
        return stack.enter_context(
            open_reward_program(
                config.grpo.reward_command,
                mode=config.grpo.reward_mode,
                timeout_seconds=config.grpo.reward_timeout_seconds,
                folder=config.folder,
                judge_allowed=False,
            )
        )
    return None


def _check_output(config: GrpoConfig, report: CheckReport) -> None:
    path = config.output.path
    with report.step("output"):
        check_writable(path)
        if path.exists():
            report.warning("output", f"{path} exists, and the run would replace it")
        else:
            report.ok("output", str(path))


def _check_memory(config: GrpoConfig, inputs: Inputs, report: CheckReport) -> None:
    a, training = inputs.architecture, config.training
    recompute = training.gradient_checkpointing
    rows = training.micro_batch
    if rows == "auto":
        rows = auto_micro_batch(a, recompute=recompute)
    group = inputs.longest_prompt + config.grpo.group_size * config.grpo.sampling.max_new_tokens
    sampled = 1 if training.rollout_weights == "f32" else 2
    parts = {
        "base in F32": trained_weights_bytes(a),
        "copy for sampling": trained_weights_bytes(a) // sampled,
        f"one pass of {min(rows, group)} tokens": activation_bytes(
            a, min(rows, group), recompute=recompute
        ),
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
        weights = rollout_weights(config, inputs)
        threads = config.training.threads or default_threads()
        engine = stack.enter_context(open_engine(config, inputs, weights, threads))
        decoder = Decoder(
            inputs.file, choose_device(config.model.device), context=config.training.ctx
        )
        adapter = new_adapter(config, inputs, decoder.device)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for _, B in adapter.factors.values():
                B.copy_(torch.empty(B.shape).normal_(0.0, 0.02, generator=generator))
        result = Bench(inputs.prompts[0].tokens, decoder, engine, weights.kind).probe(adapter)
        learner = open_learner(config, decoder, adapter, on_fallback=lambda _: None)
        check_fanout(learner, inputs, config)
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
        section = config.grpo
        order = PromptOrder(inputs.prompts, section.prompt_order, section.sampling.seed)
        prompts = [order.at(i) for i in range(count)]
        seeds = [
            [answer_seed(section.sampling.seed, 1, slot, m) for m in range(section.group_size)]
            for slot in range(count)
        ]
        groups = []
        sampled = engine.sample([p.tokens for p in prompts], seeds)
        for index, (prompt, answers) in enumerate(zip(prompts, sampled, strict=True)):
            replies = reward.score([RewardRequest(prompt.line, a.text) for a in answers])
            groups.append(form_group(index, prompt, answers, replies, section))
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
    elif share < _FEW_SIGNALS or cut > _MANY_CUT:
        report.warning("reward spread", f"{detail}. Learning will be slow.")
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
