"""What a run takes of the memory: the settings that it depends on as a run uses them, and an
estimate of the whole."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path

from trainer.config.models import PpoConfig, RolloutConfig, RunConfig, SftConfig
from trainer.config.sft import TEXTS_PER_STEP
from trainer.gguf.architecture import Architecture
from trainer.inputs import AnyInputs, Inputs, TextInputs
from trainer.rollout.engine import plan_layout
from trainer.sizing import (
    activation_bytes,
    auto_concurrency,
    auto_micro_batch,
    cache_bytes,
    trained_weights_bytes,
)


def micro_batch_of(config: RunConfig, architecture: Architecture) -> int:
    """The most tokens in one pass."""
    chosen, training = config.training.micro_batch, config.training
    if chosen == "auto":
        return auto_micro_batch(architecture, recompute=training.gradient_checkpointing)
    return chosen


def chunk_of(config: RunConfig) -> int:
    """How many positions have their logits made at once.

    Without chunking all of a pass, which never holds more than the whole batch.
    """
    training = config.training
    if training.chunked_cross_entropy:
        return training.ce_chunk_tokens
    if isinstance(config, SftConfig):
        return training.ctx * TEXTS_PER_STEP
    return training.ctx * config.rollout.group_size * config.rollout.prompts_per_update


def concurrency_of(config: RolloutConfig, inputs: Inputs) -> int:
    """How many answers are generated at once."""
    section, training = config.rollout, config.training
    answers = section.prompts_per_update * section.group_size
    chosen = training.generation_concurrency
    if chosen == "auto":
        chosen = auto_concurrency(
            inputs.architecture,
            answers=answers,
            tokens=inputs.longest_prompt + section.sampling.max_new_tokens,
            exact=not training.fast_sampling_context,
        )
    return min(chosen, answers)


def estimate(config: RunConfig, inputs: AnyInputs) -> dict[str, int]:
    """The bytes of each large part of a run, by the part's name for people."""
    a, training = inputs.architecture, config.training
    rows = min(micro_batch_of(config, a), _longest_step(config, inputs))
    recompute = training.gradient_checkpointing
    # The factors, their gradient, and the two moments of AdamW; a copy of those started from.
    copies = 4 if inputs.lora.start is None or isinstance(config, SftConfig) else 5
    return {
        "base in F32": trained_weights_bytes(a),
        **_of_llama(config, inputs),
        f"one pass of {rows} tokens": activation_bytes(a, rows, recompute=recompute),
        "logits": 4 * min(chunk_of(config), rows) * a.vocabulary,
        "adapter": 4 * copies * inputs.adapter_size,
        **_of_rewards(config, a),
        **_of_merging(config, a),
    }


def _of_llama(config: RunConfig, inputs: AnyInputs) -> dict[str, int]:
    """What llama.cpp holds, to sample, or in SFT only to check the adapter."""
    a, training = inputs.architecture, config.training
    base = trained_weights_bytes(a)
    sizes = {"file": inputs.file.path.stat().st_size, "f32": base}
    weights = sizes.get(training.rollout_weights, base // 2)
    if isinstance(config, SftConfig):
        return {"weights to check the adapter with": weights}
    assert isinstance(inputs, Inputs)
    exact = not training.fast_sampling_context
    cache = cache_bytes(a, _cells(config, inputs), exact=exact)
    return {"weights for sampling": weights, "sampler's cache": cache}


def _of_merging(config: RunConfig, a: Architecture) -> dict[str, int]:
    """The merged model in F16, which is compared while the rest is still open."""
    if config.output.kind == "adapter":
        return {}
    return {"merged model, to compare it": trained_weights_bytes(a) // 2}


def _of_rewards(config: RunConfig, a: Architecture) -> dict[str, int]:
    """What is there because answers are scored and valued."""
    parts: dict[str, int] = {}
    if isinstance(config, SftConfig):
        return parts
    if isinstance(config, PpoConfig) and config.ppo.critic.enabled:
        parts["critic's features"] = _feature_bytes(config, a)
    if config.rollout.reward_model is not None:
        parts["reward model"] = 4 * _parameters(config.rollout.reward_model.path)
    return parts


def _longest_step(config: RunConfig, inputs: AnyInputs) -> int:
    """The tokens that an optimizer step computes at most: a group, its share of a batch of answers
    that each have a prompt of their own, or its texts."""
    if isinstance(config, SftConfig):
        assert isinstance(inputs, TextInputs)
        return min(TEXTS_PER_STEP, len(inputs.texts)) * inputs.longest_text
    assert isinstance(inputs, Inputs)
    longest = config.rollout.sampling.max_new_tokens
    if isinstance(config, PpoConfig):
        answers = -(-config.ppo.rollout_batch_size // config.ppo.minibatches)
        return answers * (inputs.longest_prompt + longest)
    return inputs.longest_prompt + config.grpo.group_size * longest


def _parameters(folder: Path) -> int:
    """How many numbers the weight files of a model's folder hold; a file that cannot be read counts
    for none, and opening the model will say so."""
    return sum(_numbers(path) for path in folder.glob("*.safetensors"))


def _numbers(path: Path) -> int:
    with suppress(OSError, ValueError, KeyError), path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(min(size, path.stat().st_size)))
        tensors = (entry for name, entry in header.items() if name != "__metadata__")
        return sum(math.prod(entry["shape"]) for entry in tensors)
    return 0


def _cells(config: RolloutConfig, inputs: Inputs) -> int:
    """How many tokens the sampler has room for."""
    layout = plan_layout(
        ctx=config.training.ctx,
        concurrency=concurrency_of(config, inputs),
        max_prompt_tokens=inputs.longest_prompt,
        group_size=config.rollout.group_size,
        max_new_tokens=config.rollout.sampling.max_new_tokens,
    )
    return layout.cells


def _feature_bytes(config: PpoConfig, a: Architecture) -> int:
    """The states of the longest answers that an update can have: each answer's own, all of them in
    one tensor, and what the critic makes of that in F32 (the probe standardises it)."""
    section, critic = config.ppo, config.ppo.critic
    numbers = section.rollout_batch_size * section.sampling.max_new_tokens * a.width
    kept = 4 if critic.feature_dtype == "f32" else 2
    return numbers * (2 * kept + 4 * (2 if critic.kind == "probe" else 1))
