"""What a run holds open while it trains: weights, sampler, reward program, learner."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from trainer.agreement import Parity
from trainer.algorithms.collect import Collector
from trainer.algorithms.grpo import Grpo
from trainer.algorithms.order import PromptOrder
from trainer.config.models import GrpoConfig
from trainer.device import choose_device, keep_freed_pages
from trainer.errors import ConfigError
from trainer.export import check_writable
from trainer.gguf.architecture import Architecture
from trainer.inputs import Inputs
from trainer.llama.native import gpu_available
from trainer.model.adapter import Adapter
from trainer.model.decoder import Decoder
from trainer.model.learner import Learner, OptimizerSettings, PassSettings
from trainer.model.passes import plan_passes
from trainer.monitor.protocol import Event, Monitor
from trainer.reward.program import RewardProgram, open_reward_program
from trainer.rollout.answers import SamplingSettings
from trainer.rollout.copies import cache_folder
from trainer.rollout.engine import RolloutEngine
from trainer.rollout.weights import RolloutWeights, weights_for_rollout
from trainer.sizing import (
    auto_concurrency,
    auto_micro_batch,
    default_threads,
    trained_weights_bytes,
)


@dataclass(frozen=True, slots=True)
class Session:
    """The open parts of a run, and the loop over them."""

    grpo: Grpo
    adapter: Adapter
    parity: Parity


def open_session(config: GrpoConfig, inputs: Inputs, monitor: Monitor, stack: ExitStack) -> Session:
    """Open everything; ``stack`` closes it. Raises ConfigError, ModelError, RewardError, or
    TrainingError when llama.cpp and torch disagree."""
    torch.set_num_threads(threads_of(config))
    keep_freed_pages()
    monitor.progress("prepare", 0, 3)
    # First, so that a program that loads something does so while the model is made ready.
    reward = stack.enter_context(open_reward(config))
    weights = rollout_weights(config, inputs)
    monitor.progress("prepare", 1, 3)
    engine = stack.enter_context(open_engine(config, inputs, weights))
    monitor.progress("prepare", 2, 3)
    decoder = Decoder(inputs.file, choose_device(config.model.device), context=config.training.ctx)
    adapter = new_adapter(config, inputs, decoder.device)
    parity = Parity(inputs.prompts[0].tokens, decoder, engine, weights.kind)
    parity.probe(adapter)
    learner = open_learner(config, decoder, adapter, _say_once(monitor))
    monitor.progress("prepare", 3, 3)
    monitor.event(_settings(config, learner, engine, weights))
    collector = Collector(config.grpo, prompt_order(config, inputs), engine, reward)
    return Session(Grpo(config, collector, learner, monitor), adapter, parity)


def threads_of(config: GrpoConfig) -> int:
    return config.training.threads or default_threads()


def micro_batch_of(config: GrpoConfig, architecture: Architecture) -> int:
    chosen, training = config.training.micro_batch, config.training
    if chosen == "auto":
        return auto_micro_batch(architecture, recompute=training.gradient_checkpointing)
    return chosen


def prompt_order(config: GrpoConfig, inputs: Inputs) -> PromptOrder:
    return PromptOrder(inputs.prompts, config.grpo.prompt_order, config.grpo.sampling.seed)


def open_reward(config: GrpoConfig) -> RewardProgram:
    section = config.grpo
    return open_reward_program(
        section.reward_command,
        mode=section.reward_mode,
        timeout_seconds=section.reward_timeout_seconds,
        folder=config.folder,
        judge_allowed=False,
    )


def check_output(config: GrpoConfig) -> None:
    """See before the run that its result has a place of its own. Raises ConfigError."""
    path, observe = config.output.path, config.observe
    taken = [config.grpo.prompts, config.source]
    if observe is not None and observe.directory is not None:
        taken.append(observe.directory / "observe.jsonl")
    try:
        if path.resolve() in [other.resolve() for other in taken]:
            raise ConfigError(f"{path}: the run reads or writes this file itself. Set another.")
        check_writable(path)
    except ConfigError as error:
        raise ConfigError(f"{config.where('output.path')}: {error}") from error


def check_fanout(config: GrpoConfig, inputs: Inputs) -> None:
    """See before the run that an explicit fan-out can be met by the longest answers to the longest
    prompt. Raises ConfigError when it cannot."""
    longest = [config.grpo.sampling.max_new_tokens] * config.grpo.group_size
    try:
        plan_passes(
            inputs.longest_prompt,
            longest,
            micro_batch=micro_batch_of(config, inputs.architecture),
            fanout=config.training.shared_prefix_fanout,
        )
    except ConfigError as error:
        where = config.where("training.shared_prefix_fanout")
        raise ConfigError(f"{where}: {error}") from error


def rollout_weights(config: GrpoConfig, inputs: Inputs) -> RolloutWeights:
    choice = config.training.rollout_weights
    return weights_for_rollout(
        choice,
        inputs.file.path,
        cache=cache_folder(),
        # Hashing reads the whole file, and only a copy needs a name.
        digest="" if choice == "file" else inputs.file.digest(),
        reserved_bytes=trained_weights_bytes(inputs.architecture),
        threads=threads_of(config),
    )


def open_engine(config: GrpoConfig, inputs: Inputs, weights: RolloutWeights) -> RolloutEngine:
    section, training = config.grpo, config.training
    exact = not training.fast_sampling_context
    answers = section.prompts_per_update * section.group_size
    concurrency = training.generation_concurrency
    if concurrency == "auto":
        concurrency = auto_concurrency(
            inputs.architecture,
            answers=answers,
            tokens=inputs.longest_prompt + section.sampling.max_new_tokens,
            exact=exact,
        )
    return RolloutEngine(
        weights.path,
        ctx=training.ctx,
        concurrency=min(concurrency, answers),
        max_prompt_tokens=inputs.longest_prompt,
        group_size=section.group_size,
        settings=SamplingSettings(
            section.sampling.temperature, section.sampling.top_p, section.sampling.max_new_tokens
        ),
        exact=exact,
        threads=threads_of(config),
        # A GPU that only torch sees still trains; sampling then stays on the CPU.
        use_gpu=config.model.device != "cpu" and gpu_available(),
    )


def new_adapter(config: GrpoConfig, inputs: Inputs, device: torch.device) -> Adapter:
    return Adapter(
        inputs.architecture,
        inputs.targets,
        rank=config.lora.rank,
        alpha=config.lora.alpha,
        seed=config.lora.seed,
        device=device,
    )


def open_learner(
    config: GrpoConfig, decoder: Decoder, adapter: Adapter, on_fallback: Callable[[str], None]
) -> Learner:
    training = config.training
    # Without chunking the logits of a whole pass are made at once: a pass never has more rows
    # than the context times the group.
    whole = training.ctx * config.grpo.group_size
    return Learner(
        decoder,
        adapter,
        PassSettings(
            micro_batch=micro_batch_of(config, decoder.architecture),
            fanout=training.shared_prefix_fanout,
            recompute=training.gradient_checkpointing,
            chunk=training.ce_chunk_tokens if training.chunked_cross_entropy else whole,
            temperature=config.grpo.sampling.temperature,
        ),
        OptimizerSettings(training.optimizer, training.weight_decay, training.max_grad_norm),
        on_fallback=on_fallback,
    )


def _settings(
    config: GrpoConfig, learner: Learner, engine: RolloutEngine, weights: RolloutWeights
) -> Event:
    """What the automatic settings came to."""
    data = {
        "threads": threads_of(config),
        "device": str(learner.decoder.device),
        "micro_batch": learner.settings.micro_batch,
        "generation_concurrency": engine.concurrency,
        "rollout_weights": weights.kind,
    }
    words = ", ".join(f"{key} {value}" for key, value in data.items())
    return Event("info", "settings", f"settings: {words} ({weights.reason})", data=data)


def _say_once(monitor: Monitor) -> Callable[[str], None]:
    """Report the first reason for packing less than was wished; others differ in numbers only."""
    said = False

    def say(reason: str) -> None:
        nonlocal said
        if not said:
            said = True
            monitor.event(
                Event("info", "packing", f"Packing fewer answers in a pass than a group: {reason}.")
            )

    return say
