"""``[training]``: the optimizer, and how much is computed at once."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainer.config.base import Section, Unset, integer_or

MicroBatch = Annotated[int | Literal["auto"], integer_or("auto", low=1)]
GenerationConcurrency = Annotated[int | Literal["auto"], integer_or("auto", low=1, high=256)]
SharedPrefixFanout = Annotated[
    int | Literal["auto", "off", "max"], integer_or("auto", "off", "max", low=2)
]


class TrainingSection(Section):
    """The optimizer, and what trades memory against speed."""

    lr: float = Field(default=1e-4, gt=0)
    """Learning rate at its height; too high shows as a clip fraction that stays above 0.5."""

    lr_scheduler: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate goes on after the warm-up; `linear` and `cosine` fall so that
    they reach zero at the step after the last."""

    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer steps over which the learning rate rises to its height, the first of them above
    zero already; planned steps count, even where no group has a signal."""

    optimizer: Literal["adamw", "sgd"] = "adamw"
    """`adamw` keeps two F32 values for each trained number, `sgd` none."""

    weight_decay: float = Field(default=0.0, ge=0)
    """Pull of the factors toward zero, decoupled from the gradient."""

    max_grad_norm: float = Field(default=1.0, gt=0)
    """A gradient whose norm over the whole adapter is larger is scaled down to it."""

    epochs: int = Field(default=1, ge=1)
    """Passes over the texts in SFT; GRPO and PPO count in updates and do not use it."""

    ctx: int = Field(default=512, ge=2)
    """Most tokens of a prompt with its answer, or of a text in SFT; what cannot fit is refused at
    the start."""

    micro_batch: MicroBatch = "auto"
    """Most tokens in one forward and backward pass: the memory knob. Answers share a pass only
    where it holds the prompt and all of them."""

    generation_concurrency: GenerationConcurrency = "auto"
    """Answers generated at once: more is faster and takes more memory; llama.cpp takes 246 at most,
    and any beyond wait. With `rollout_weights = "f32"` and `fast_sampling_context = false` the
    answers do not depend on it; otherwise rounding may, rarely, change one."""

    shared_prefix_fanout: SharedPrefixFanout = "auto"
    """Answers to one prompt in one pass. `auto` takes fewer where they do not fit, and logs why;
    `off` takes one; `max` takes the group. An integer that cannot be met is an error. With PPO,
    whose prompts differ, `off` and integers bound the answers in a pass, and `max` is `auto`."""

    rollout_weights: Literal["auto", "file", "f16", "f32"] = "auto"
    """What answers are sampled from: the base `file` as it is, or its dequantised copy in `f16` or
    `f32`, which is nearer to the trained weights; `auto` takes f16 where memory allows."""

    fast_sampling_context: bool = True
    """An F16 cache while sampling, and flash attention where it is the faster; `false` computes
    attention in F32."""

    importance_correction: Literal["off", "token"] = "token"
    """Whether each token's term is weighted by the ratio of the trainer's probability to the
    sampler's, which corrects for the small gap between the two."""

    importance_cap: float = Field(default=2.0, ge=1)
    """The most that such a weight can be; a higher cap means less bias and more noise."""

    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time, the same result."""

    chunked_cross_entropy: bool = True
    """Compute log-probabilities a few positions at a time, so that no tensor of all positions by
    the whole vocabulary is made."""

    ce_chunk_tokens: int = Field(default=512, ge=1)
    """Positions in one such chunk; memory grows with it."""

    threads: Annotated[int | None, Unset("automatic")] = Field(default=None, ge=1, le=512)
    """CPU threads of the trainer and of the sampler."""
