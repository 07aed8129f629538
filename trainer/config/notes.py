"""Remarks on a valid configuration: keys without effect, and settings that rarely go well."""

from __future__ import annotations

from collections.abc import Iterator

from trainer.config.models import (
    CommonConfig,
    GrpoConfig,
    PpoConfig,
    RolloutConfig,
    RunConfig,
    SftConfig,
)
from trainer.config.ppo import CriticSection

# Above this a sequence's mean ratio, which stays near 1, hardly ever meets the clip.
_WIDE_FOR_SEQUENCES = 0.05


def notes(config: RunConfig) -> list[str]:
    """What the user should know before the run starts, one sentence or two each."""
    return list(_notes(config))


def _notes(config: RunConfig) -> Iterator[str]:
    yield from _training_notes(config)
    yield from _common_notes(config)
    if isinstance(config, SftConfig):
        yield from _sft_notes(config)
        return
    if config.training.given("epochs"):
        name = config.run.algorithm.upper()
        yield f"training.epochs is not used by {name}: the length of the run is its updates."
    yield from _schedule_notes(config)
    if isinstance(config, GrpoConfig):
        yield from _grpo_notes(config)
    else:
        yield from _ppo_notes(config)


_OF_SAMPLING = ("generation_concurrency", "importance_correction", "importance_cap")


def _sft_notes(config: SftConfig) -> Iterator[str]:
    if config.reference is not None:
        yield "[reference] is not used by SFT, which has no KL penalty."
    for key in _OF_SAMPLING:
        if config.training.given(key):
            yield f"training.{key} is not used by SFT, which samples no answers."
    if config.given("audit"):
        yield "[audit] is not used by SFT, which samples no answers."


def _schedule_notes(config: RolloutConfig) -> Iterator[str]:
    section, warmup = config.rollout, config.training.warmup_steps
    steps = section.updates * section.epochs * section.steps_per_pass
    if warmup >= steps:
        yield (
            f"the run has at most {steps} optimizer steps, so the learning rate is still rising "
            f"when it ends: training.warmup_steps is {warmup}."
        )


def _training_notes(config: CommonConfig) -> Iterator[str]:
    training = config.training
    if training.given("importance_cap") and training.importance_correction == "off":
        yield 'training.importance_cap is not used while importance_correction = "off".'
    if training.given("ce_chunk_tokens") and not training.chunked_cross_entropy:
        yield "training.ce_chunk_tokens is not used while chunked_cross_entropy = false."


def _common_notes(config: CommonConfig) -> Iterator[str]:
    evaluation = config.evaluation
    if evaluation is not None and evaluation.given("min_delta") and evaluation.patience is None:
        yield "evaluation.min_delta is not used without evaluation.patience."
    checkpoint = config.checkpoint
    if checkpoint is not None and checkpoint.mode == "best_eval":
        for key in ("every_steps", "keep"):
            if checkpoint.given(key):
                yield f'checkpoint.{key} is not used while mode = "best_eval".'


def _grpo_notes(config: GrpoConfig) -> Iterator[str]:
    grpo = config.grpo
    widest = max(grpo.clip_range_low, grpo.clip_range_high)
    if grpo.importance_sampling_level == "sequence" and widest > _WIDE_FOR_SEQUENCES:
        yield (
            f"a clip range of {widest:g} hardly ever clips with importance_sampling_level = "
            '"sequence", because the mean ratio of an answer stays close to 1: try '
            "clip_range_low = 0.0003 and clip_range_high = 0.0004."
        )
    if grpo.mask_truncated and grpo.overlong_penalty is not None:
        yield (
            "mask_truncated leaves out the very answers that [grpo.overlong_penalty] would "
            "penalise most: one of the two is usually enough."
        )
    if config.reference is not None and grpo.kl_coefficient == 0:
        yield "[reference] is not used while grpo.kl_coefficient = 0."


def _ppo_notes(config: PpoConfig) -> Iterator[str]:
    ppo = config.ppo
    if config.reference is not None and (ppo.kl_coefficient == 0 or ppo.kl_anchor == "rollout"):
        yield (
            "[reference] is only used with ppo.kl_coefficient above 0 and ppo.kl_anchor = "
            '"reference".'
        )
    if ppo.given("kl_anchor") and ppo.kl_coefficient == 0:
        yield "ppo.kl_anchor is not used while ppo.kl_coefficient = 0."
    yield from _critic_notes(ppo.critic)


def _critic_notes(critic: CriticSection) -> Iterator[str]:
    if not critic.enabled:
        for key in sorted(critic.model_fields_set - {"enabled"}):
            yield f"ppo.critic.{key} is not used while the critic is off."
        return
    of_the_other = {
        "probe": ("value_loss_coefficient", "value_clip_range"),
        "shared": ("value_lr", "value_epochs"),
    }[critic.kind]
    for key in of_the_other:
        if critic.given(key):
            yield f'ppo.critic.{key} is not used by kind = "{critic.kind}".'
