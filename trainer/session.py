"""What a run holds open while it trains: weights, sampler, reward program, learner."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import llama_cpp
import torch

from trainer.agreement import Bench
from trainer.algorithms.grpo import Grpo
from trainer.algorithms.order import PromptOrder
from trainer.config.models import GrpoConfig
from trainer.device import choose_device, keep_freed_pages
from trainer.inputs import Inputs
from trainer.llama.quantize import cache_folder
from trainer.model.adapter import Adapter
from trainer.model.decoder import Decoder
from trainer.model.learner import Learner, OptimizerSettings, PassSettings
from trainer.model.passes import plan_passes
from trainer.monitor.protocol import Event, Monitor
from trainer.reward.program import open_reward_program
from trainer.rollout.answers import SamplingSettings
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
    bench: Bench


def open_session(config: GrpoConfig, inputs: Inputs, monitor: Monitor, stack: ExitStack) -> Session:
    """Open everything; ``stack`` closes it. Raises ConfigError, ModelError or RewardError."""
    threads = config.training.threads or default_threads()
    torch.set_num_threads(threads)
    keep_freed_pages()
    monitor.progress("prepare", 0, 3)
    weights = rollout_weights(config, inputs)
    monitor.progress("prepare", 1, 3)
    engine = stack.enter_context(open_engine(config, inputs, weights, threads))
    monitor.progress("prepare", 2, 3)
    decoder = Decoder(inputs.file, choose_device(config.model.device), context=config.training.ctx)
    adapter = new_adapter(config, inputs, decoder.device)
    learner = open_learner(config, decoder, adapter, _say_once(monitor))
    check_fanout(learner, inputs, config)
    section = config.grpo
    reward = stack.enter_context(
        open_reward_program(
            section.reward_command,
            mode=section.reward_mode,
            timeout_seconds=section.reward_timeout_seconds,
            folder=config.folder,
            judge_allowed=False,
        )
    )
    bench = Bench(inputs.prompts[0].tokens, decoder, engine, weights.kind)
    bench.probe(adapter)
    monitor.progress("prepare", 3, 3)
    monitor.event(_settings(learner, engine, weights, threads))
    order = PromptOrder(inputs.prompts, section.prompt_order, section.sampling.seed)
    grpo = Grpo(config, order, engine, reward, learner, monitor)
    return Session(grpo, adapter, bench)


def rollout_weights(config: GrpoConfig, inputs: Inputs) -> RolloutWeights:
    return weights_for_rollout(
        config.training.rollout_weights,
        inputs.file.path,
        cache=cache_folder(),
        digest=inputs.file.digest(),
        reserved_bytes=trained_weights_bytes(inputs.architecture),
        threads=config.training.threads or default_threads(),
    )


def open_engine(
    config: GrpoConfig, inputs: Inputs, weights: RolloutWeights, threads: int
) -> RolloutEngine:
    section, training = config.grpo, config.training
    exact = not training.fast_sampling_context
    concurrency = training.generation_concurrency
    if concurrency == "auto":
        concurrency = auto_concurrency(
            inputs.architecture,
            answers=section.prompts_per_update * section.group_size,
            tokens=inputs.longest_prompt + section.sampling.max_new_tokens,
            exact=exact,
        )
    return RolloutEngine(
        weights.path,
        ctx=training.ctx,
        concurrency=concurrency,
        max_prompt_tokens=inputs.longest_prompt,
        group_size=section.group_size,
        settings=SamplingSettings(
            section.sampling.temperature, section.sampling.top_p, section.sampling.max_new_tokens
        ),
        exact=exact,
        threads=threads,
        # A GPU that only torch sees still trains; sampling then stays on the CPU.
        use_gpu=config.model.device != "cpu" and bool(llama_cpp.llama_supports_gpu_offload()),
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
    micro_batch = training.micro_batch
    if micro_batch == "auto":
        micro_batch = auto_micro_batch(
            decoder.architecture, recompute=training.gradient_checkpointing
        )
    # Without chunking the logits of a whole pass are made at once: a pass never has more rows
    # than the context times the group.
    whole = training.ctx * config.grpo.group_size
    return Learner(
        decoder,
        adapter,
        PassSettings(
            micro_batch=micro_batch,
            fanout=training.shared_prefix_fanout,
            recompute=training.gradient_checkpointing,
            chunk=training.ce_chunk_tokens if training.chunked_cross_entropy else whole,
            temperature=config.grpo.sampling.temperature,
        ),
        OptimizerSettings(training.optimizer, training.weight_decay, training.max_grad_norm),
        on_fallback=on_fallback,
    )


def check_fanout(learner: Learner, inputs: Inputs, config: GrpoConfig) -> None:
    """See before the run that an explicit fan-out can be met by the longest answers to the longest
    prompt. Raises ConfigError when it cannot."""
    longest = [config.grpo.sampling.max_new_tokens] * config.grpo.group_size
    settings = learner.settings
    plan_passes(
        inputs.longest_prompt, longest, micro_batch=settings.micro_batch, fanout=settings.fanout
    )


def _settings(
    learner: Learner, engine: RolloutEngine, weights: RolloutWeights, threads: int
) -> Event:
    """What the automatic settings came to."""
    data = {
        "threads": threads,
        "device": str(learner.decoder.device),
        "micro_batch": learner.settings.micro_batch,
        "generation_concurrency": engine.concurrency,
        "rollout_weights": weights.kind,
    }
    words = ", ".join(f"{key} {value}" for key, value in data.items())
    return Event("info", "settings", f"settings: {words} ({weights.reason})", data=data)


def _say_once(monitor: Monitor) -> Callable[[str], None]:
    """Report each reason for packing less than was wished once, however often it occurs."""
    said: set[str] = set()

    def say(reason: str) -> None:
        if not said:
            said.add(reason)
            monitor.event(
                Event("info", "packing", f"Packing fewer answers in a pass than a group: {reason}.")
            )

    return say
