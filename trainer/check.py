"""Everything that can be known about a run before it trains."""

from __future__ import annotations

import json
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
from trainer.algorithms.episodes import form_episodes
from trainer.algorithms.forming import GroupForming
from trainer.algorithms.stopwatch import Stopwatch
from trainer.config import (
    PpoConfig,
    RolloutConfig,
    RunConfig,
    SftConfig,
    notes,
    refuse_unavailable,
)
from trainer.device import choose_device
from trainer.errors import RetrogradError
from trainer.inputs import (
    AnyInputs,
    Inputs,
    ModelInputs,
    coverage,
    planned_updates,
    read_inputs,
    read_text_inputs,
)
from trainer.memory import estimate
from trainer.model.decoder import Decoder
from trainer.monitor.base import SilentMonitor
from trainer.opening.checks import check_fanout, check_output
from trainer.opening.model import (
    hand_over_start,
    new_adapter,
    open_checking_engine,
    open_engine,
    rollout_weights,
    threads_of,
)
from trainer.opening.rollouts import open_collector
from trainer.opening.scoring import open_reward
from trainer.opening.texts import parity_text
from trainer.reward.classifier import PART
from trainer.reward.combined import PROGRAM_PART
from trainer.reward.program import RewardProgram, RewardReply, RewardRequest
from trainer.rollout.engine import RolloutEngine
from trainer.rollout.weights import RolloutWeights
from trainer.sizing import available_bytes
from trainer.spread import describe_answers, describe_groups

_MIB = 1 << 20
_MADE_UP_ANSWER = "A made-up answer."
_MANY_CUT = 0.5


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

    ``sample`` prompts get answers from the initial policy, a group or for PPO one each, and the
    spread of their rewards tells whether there is anything to learn from. SFT samples nothing.
    """
    refuse_unavailable(config)
    report = CheckReport()
    for note in notes(config):
        report.warning("configuration", note)
    torch.set_num_threads(threads_of(config))
    with ExitStack() as stack:
        if isinstance(config, SftConfig):
            _check_texts(config, report, stack)
            if sample:
                report.warning("sample answers", "SFT samples none, so there are none to look at")
        else:
            _check_rollouts(config, report, stack, sample)
    return report


def _check_texts(config: SftConfig, report: CheckReport, stack: ExitStack) -> None:
    inputs = None
    with report.step("model and texts"):
        inputs = read_text_inputs(config)
        _report_model(config, inputs, report)
        count, steps = len(inputs.texts), planned_updates(config, inputs)
        learnt = sum(text.tokens for text in inputs.texts)
        report.ok(
            "texts",
            f"{count} texts of at most {inputs.longest_text} tokens (ctx = {config.training.ctx}), "
            f"of which {learnt:,} tokens are learnt; {config.training.epochs} epochs are {steps} "
            f"optimizer steps",
        )
        _report_adapter(config, inputs, report)
    _check_output(config, inputs, report)
    if inputs is None:
        report.warning("not looked at", "adapter, memory: they need the model and the texts")
        return
    _check_memory(config, inputs, report)
    with report.step("llama.cpp and trainer"):
        weights = rollout_weights(config, inputs)
        engine = stack.enter_context(open_checking_engine(config, inputs, weights.path))
        _probe(config, inputs, engine, weights, parity_text(inputs.texts[0]), report)


def _check_rollouts(
    config: RolloutConfig, report: CheckReport, stack: ExitStack, sample: int
) -> None:
    inputs = _check_inputs(config, report)
    reward = _check_reward(config, inputs, report, stack)
    _check_output(config, inputs, report)
    if inputs is None:
        missing = "adapter, reward, memory, sampler"
        report.warning("not looked at", f"{missing}: they need the model and the prompts")
        return
    _check_memory(config, inputs, report)
    engine = _check_agreement(config, inputs, report, stack)
    if sample and engine is not None and reward is not None:
        _sample(config, inputs, engine, reward, sample, report)


def _report_model(config: RunConfig, inputs: ModelInputs, report: CheckReport) -> None:
    a = inputs.architecture
    report.ok(
        "model",
        f"{config.model.path}: {a.name}, {a.layers} layers of {a.width}, vocabulary "
        f"{a.vocabulary:,}",
    )
    if config.model.template_variables:
        report.ok("template variables", json.dumps(config.model.template_variables))
    for remark in inputs.remarks:
        report.warning("chat template", remark)


def _report_adapter(config: RunConfig, inputs: ModelInputs, report: CheckReport) -> None:
    lora = inputs.lora
    start = f", beginning with {config.lora.init_adapter}" if lora.start is not None else ""
    report.ok(
        "adapter",
        f"rank {lora.rank} on {coverage(inputs)}: {inputs.adapter_size:,} parameters{start}",
    )


def _check_inputs(config: RolloutConfig, report: CheckReport) -> Inputs | None:
    with report.step("model and prompts"):
        inputs = read_inputs(config)
        _report_model(config, inputs, report)
        longest = inputs.longest_prompt
        answer = config.rollout.sampling.max_new_tokens
        report.ok(
            "prompts",
            f"{len(inputs.prompts)} prompts of at most {longest} tokens; with answers of "
            f"{answer} the longest takes {longest + answer} of ctx = {config.training.ctx}",
        )
        _report_adapter(config, inputs, report)
        return inputs
    return None


def _check_reward(
    config: RolloutConfig, inputs: Inputs | None, report: CheckReport, stack: ExitStack
) -> RewardProgram | None:
    """Start what scores and let it score one made-up answer, as a run would."""
    title, name = _scorer(config)
    with report.step(title):
        program = stack.enter_context(open_reward(config, choose_device(config.model.device)))
        if inputs is None:
            return None
        start = time.perf_counter()
        (reply,) = program.score([RewardRequest(inputs.prompts[0].line, _MADE_UP_ANSWER)])
        report.ok(
            title,
            f"{name} gave {reply.reward:g}{_terms(reply)} to the answer {_MADE_UP_ANSWER!r} in "
            f"{time.perf_counter() - start:.2f} s",
        )
        return program
    return None


def _scorer(config: RolloutConfig) -> tuple[str, str]:
    """What scores the answers, as a title and by its name."""
    command, model = config.rollout.reward_command, config.rollout.reward_model
    if model is None:
        return "reward program", shlex.join(command or [])
    if command is None:
        return "reward model", str(model.path)
    return "reward program and model", f"{shlex.join(command)} and {model.path} together"


def _terms(reply: RewardReply) -> str:
    """What the two scores are, where there are two."""
    if PROGRAM_PART not in reply.parts or PART not in reply.parts:
        return ""
    return f" (the program {reply.parts[PROGRAM_PART]:g}, the model {reply.parts[PART]:g})"


def _check_output(config: RunConfig, inputs: AnyInputs | None, report: CheckReport) -> None:
    path, adapter = config.output.path, config.output.adapter_path
    beside = f", with the adapter in {adapter}" if adapter != path else ""
    with report.step("output"):
        check_output(config, inputs)
        if there := [str(p) for p in dict.fromkeys((path, adapter)) if p.exists()]:
            verb = "exists" if len(there) == 1 else "exist"
            them = "it" if len(there) == 1 else "them"
            report.warning(
                "output", f"{' and '.join(there)} {verb}, and the run would replace {them}"
            )
        else:
            report.ok("output", f"{path}{beside}")


def _check_memory(config: RunConfig, inputs: AnyInputs, report: CheckReport) -> None:
    parts = estimate(config, inputs)
    total, free = sum(parts.values()), available_bytes()
    words = ", ".join(f"{name} {size // _MIB:,} MiB" for name, size in parts.items())
    detail = f"about {total // _MIB:,} MiB of {free // _MIB:,} MiB free: {words}"
    if total > free:
        advice = "Lower micro_batch, turn on gradient_checkpointing, or use a smaller model."
        report.warning("memory", f"{detail}. {advice}")
    else:
        report.ok("memory", detail)


def _check_agreement(
    config: RolloutConfig, inputs: Inputs, report: CheckReport, stack: ExitStack
) -> RolloutEngine | None:
    """Give llama.cpp an adapter that changes the model, and see that both sides change alike."""
    with report.step("sampler and trainer"):
        check_fanout(config, inputs)
        weights = rollout_weights(config, inputs)
        engine = stack.enter_context(open_engine(config, inputs, weights))
        _probe(config, inputs, engine, weights, inputs.prompts[0].tokens, report)
        return engine
    return None


def _probe(
    config: RunConfig,
    inputs: ModelInputs,
    engine: RolloutEngine,
    weights: RolloutWeights,
    tokens: Sequence[int],
    report: CheckReport,
) -> None:
    """Compare both sides; afterwards llama.cpp has the adapter that the run begins with."""
    decoder = Decoder(inputs.file, choose_device(config.model.device), context=config.training.ctx)
    adapter = new_adapter(config, inputs, decoder.device)
    result = Parity(tokens, decoder, engine, weights.kind).probe(adapter)
    hand_over_start(inputs, engine, adapter)
    verb = "checking" if isinstance(config, SftConfig) else "sampling"
    report.ok(
        f"{'llama.cpp' if isinstance(config, SftConfig) else 'sampler'} and trainer",
        f"{verb} with {weights.kind} weights ({weights.reason}); a random adapter changes "
        f"both sides by {result.change:.2g} nats a token, and they differ by {result.gap:.2g}",
    )


def _sample(
    config: RolloutConfig,
    inputs: Inputs,
    engine: RolloutEngine,
    reward: RewardProgram,
    count: int,
    report: CheckReport,
) -> None:
    """Sample as the first update would, and describe the rewards."""
    with report.step("reward spread"):
        # The judge costs money, and what it adds is relative within a group: it is not asked here.
        form = (
            form_episodes
            if isinstance(config, PpoConfig)
            else GroupForming(config.grpo, None, SilentMonitor())
        )
        collector = open_collector(config, inputs, engine, reward, form)
        groups = collector.groups(1, count, Stopwatch(), position=0)
        policy = "the base" if inputs.lora.start is None else "the adapter to begin with"
        if isinstance(config, PpoConfig):
            spread = describe_answers(groups, policy)
        else:
            spread = describe_groups(groups, policy)
        cut = float(np.mean([a.truncated for g in groups for a in g.answers]))
        most = config.rollout.sampling.max_new_tokens
        detail = f"{spread.words}; {cut:.0%} of the answers are cut at {most} tokens"
        advice = spread.advice
        if not advice and cut > _MANY_CUT:
            advice = "Raise max_new_tokens, unless the reward can judge an answer that is cut."
        if advice:
            report.warning("reward spread", f"{detail}. {advice}")
        else:
            report.ok("reward spread", detail)
        report.ok("sample answers", "\n".join(spread.examples))
