"""Opening the model on both sides: what trains it, and llama.cpp."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from trainer.agreement import PROBE_TOKENS
from trainer.config.models import PpoConfig, RolloutConfig, RunConfig, SftConfig
from trainer.export import load_into
from trainer.gguf.architecture import forced_metadata
from trainer.inputs import AnyInputs, Inputs, ModelInputs
from trainer.llama.native import gpu_available
from trainer.memory import chunk_of, concurrency_of, micro_batch_of
from trainer.model.adapter import Adapter
from trainer.model.decoder import Decoder
from trainer.model.learner import Learner, OptimizerSettings, PassSettings
from trainer.rollout.answers import SamplingSettings
from trainer.rollout.copies import cache_folder
from trainer.rollout.engine import RolloutEngine
from trainer.rollout.weights import RolloutWeights, weights_for_rollout
from trainer.sizing import default_threads, trained_weights_bytes


def threads_of(config: RunConfig) -> int:
    return config.training.threads or default_threads()


def rollout_weights(config: RunConfig, inputs: AnyInputs) -> RolloutWeights:
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


def settings_of(config: RolloutConfig) -> SamplingSettings:
    sampling = config.rollout.sampling
    return SamplingSettings(sampling.temperature, sampling.top_p, sampling.max_new_tokens)


def open_engine(
    config: RolloutConfig,
    inputs: Inputs,
    weights: RolloutWeights,
    *,
    settings: SamplingSettings | None = None,
    group_size: int | None = None,
) -> RolloutEngine:
    """The sampler of a run; ``settings`` and ``group_size`` stand in place of the run's own."""
    training = config.training
    return RolloutEngine(
        weights.path,
        ctx=training.ctx,
        concurrency=concurrency_of(config, inputs),
        max_prompt_tokens=inputs.longest_prompt,
        group_size=group_size or config.rollout.group_size,
        settings=settings or settings_of(config),
        exact=not training.fast_sampling_context,
        threads=threads_of(config),
        # A GPU that only torch sees still trains; sampling then stays on the CPU.
        use_gpu=config.model.device != "cpu" and gpu_available(),
        forced=forced_metadata(inputs.architecture, training.ctx),
    )


def open_checking_engine(
    config: RunConfig, inputs: ModelInputs, weights: Path, *, beside: bool = False
) -> RolloutEngine:
    """A sampler that samples nothing: llama.cpp, to compare the adapter's effect in it. One that is
    opened ``beside`` a run's own stays on the CPU, where its weights are mapped from the file: a
    GPU that holds the run may have no room for a second model."""
    return RolloutEngine(
        weights,
        ctx=2 * PROBE_TOKENS,
        concurrency=1,
        max_prompt_tokens=PROBE_TOKENS,
        group_size=1,
        settings=SamplingSettings(1.0, 1.0, 1),
        exact=not config.training.fast_sampling_context,
        threads=threads_of(config),
        use_gpu=not beside and config.model.device != "cpu" and gpu_available(),
        forced=forced_metadata(inputs.architecture, config.training.ctx),
    )


def new_adapter(config: RunConfig, inputs: ModelInputs, device: torch.device) -> Adapter:
    """The adapter as a run begins with it."""
    lora = inputs.lora
    adapter = Adapter(
        inputs.architecture,
        lora.targets,
        rank=lora.rank,
        alpha=lora.alpha,
        seed=config.lora.seed,
        device=device,
    )
    if lora.start is not None:
        adapter.load_state({k: torch.from_numpy(v) for k, v in lora.start.factors.items()})
    return adapter


def hand_over_start(inputs: ModelInputs, engine: RolloutEngine, adapter: Adapter) -> None:
    """Let the sampler begin with ``adapter`` where it comes from a file; a new one is no change."""
    if inputs.lora.start is not None:
        with load_into(engine, adapter):
            pass


def open_learner(
    config: RunConfig,
    inputs: ModelInputs,
    decoder: Decoder,
    adapter: Adapter,
    on_fallback: Callable[[str], None],
) -> Learner:
    """A learner of ``adapter``, which is as the run begins with it: where it comes from a file, it
    is a part of the initial policy."""
    training = config.training
    sampled = not isinstance(config, SftConfig)
    return Learner(
        decoder,
        adapter,
        PassSettings(
            micro_batch=micro_batch_of(config, decoder.architecture),
            fanout=training.shared_prefix_fanout,
            recompute=training.gradient_checkpointing,
            chunk=chunk_of(config),
            temperature=1.0
            if isinstance(config, SftConfig)
            else config.rollout.sampling.temperature,
            entropy_gradient=isinstance(config, PpoConfig) and config.ppo.entropy_coefficient > 0,
        ),
        OptimizerSettings(training.optimizer, training.weight_decay, training.max_grad_norm),
        on_fallback=on_fallback,
        initial=adapter.frozen() if sampled and inputs.lora.start is not None else None,
    )
