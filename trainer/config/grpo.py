"""``[grpo]`` and the sections below it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo

from trainer.config.base import (
    LARGEST_SEED,
    BrokenRule,
    Checked,
    NotAllowed,
    Section,
    Unset,
)
from trainer.config.judge import Judge
from trainer.config.rewards import RolloutSection


def _on_policy(value: object, _info: ValidationInfo) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool) and value == 1:
        return value
    raise NotAllowed(
        "must be 1.0: GRPO trains on the policy's own distribution, so answers have to be drawn "
        "from it unchanged"
    )


One = Annotated[float, Checked(_on_policy, "1.0")]


class GrpoSampling(Section):
    """How answers are drawn."""

    temperature: One
    """Divides the logits; only 1.0 is allowed, because sampling has to be on-policy."""

    top_p: One
    """Probability mass that is kept; only 1.0 is allowed, for the same reason."""

    max_new_tokens: int = Field(ge=1)
    """Most tokens of an answer, its end token included; also the constant in the loss's divisor."""

    seed: int = Field(ge=0, le=LARGEST_SEED)
    """Every answer's own seed is derived from it, so a run can be repeated."""


class OverlongPenalty(Section):
    """Lowers the reward of answers that come near `max_new_tokens`."""

    buffer_tokens: int = Field(ge=1)
    """How many tokens before the limit the penalty begins, growing from zero."""

    max_penalty: float = Field(gt=0)
    """What is taken off the reward at the limit."""


class KlSchedule(Section):
    """Changes the KL coefficient during the run; needs `kl_coefficient` above 0."""

    warmup_updates: int = Field(ge=0)
    """Updates over which the coefficient rises to its configured value, in equal parts: the first
    update has one part already."""

    target: float = Field(gt=0)
    """The KL divergence, in nats per token, that the coefficient is then steered to."""


class DynamicSampling(Section):
    """Draws further prompts in place of groups that carry no signal."""

    max_resample_factor: int = Field(ge=2)
    """An update draws at most this many times `prompts_per_update` prompts."""


class GrpoSection(RolloutSection):
    """Group-relative policy optimization: Dr. GRPO's loss with DAPO's refinements."""

    updates: int = Field(ge=1)
    """How often the run samples, scores and trains."""

    prompts_per_update: int = Field(ge=1)
    """Prompts, and so groups, in one update; a pass over them makes at most that many optimizer
    steps, since a group without signal makes none."""

    group_size: int = Field(ge=2, le=256)
    """Answers to one prompt; a larger group estimates its mean better and costs more."""

    grpo_epochs: int = Field(ge=1)
    """Optimizer passes over the answers of one update."""

    clip_range_low: float = Field(gt=0, lt=1)
    """How far the probability ratio may fall below 1 before its gradient is cut."""

    clip_range_high: float = Field(gt=0, lt=1)
    """How far it may rise above 1; at least `clip_range_low`, and a bit more keeps exploring."""

    kl_coefficient: float = Field(ge=0)
    """Weight of the penalty, per nat, on moving away from the initial policy; 0 turns it off."""

    mask_truncated: bool = False
    """Whether answers cut at `max_new_tokens` are left out of the group and of the loss."""

    baseline: Literal["mean", "leave_one_out"] = "mean"
    """What an answer's reward is compared with: the group's mean, or the mean of the others."""

    importance_sampling_level: Literal["token", "sequence"] = "token"
    """One ratio for each token, or one for each answer (GSPO), which needs far narrower ranges."""

    max_stalled_updates: int = Field(default=25, ge=0)
    """Updates in a row without any signal after which the run stops; 0 never stops it."""

    sampling: GrpoSampling
    """See the section."""

    overlong_penalty: OverlongPenalty | None = None
    """See the section."""

    kl_schedule: KlSchedule | None = None
    """See the section."""

    dynamic_sampling: DynamicSampling | None = None
    """See the section."""

    judge_weight: Annotated[float | None, Unset("required with a judge")] = Field(
        default=None, ge=0
    )
    """What the judge's verdict, from 0 to 1, is multiplied by before it is added to the reward."""

    judge_failure: Literal["drop_group", "fail"] = "drop_group"
    """What follows when the judge cannot be reached: lose the group, or stop the run."""

    max_judge_dropped_fraction: float = Field(default=0.5, ge=0, le=1)
    """The largest share of an update's groups that may be lost so before the run stops."""

    judge: Judge | None = None
    """See the section."""

    @property
    def epochs(self) -> int:
        return self.grpo_epochs

    @property
    def steps_per_pass(self) -> int:
        """Steps that a pass is planned with; a group without signal makes none."""
        return self.prompts_per_update

    def broken_rules(self) -> Iterator[BrokenRule]:
        yield from super().broken_rules()
        if self.clip_range_high < self.clip_range_low:
            yield BrokenRule(
                "clip_range_high",
                f"must be at least clip_range_low ({self.clip_range_low:g}): raise it, or lower "
                "clip_range_low",
            )
        if self.kl_schedule is not None and self.kl_coefficient == 0:
            yield BrokenRule(
                "kl_schedule",
                "has no penalty to schedule while grpo.kl_coefficient is 0: set the coefficient "
                "above 0, or remove the section",
            )
        yield from self._broken_budget_rules()
        yield from self._broken_judge_rules()

    def _broken_budget_rules(self) -> Iterator[BrokenRule]:
        penalty, limit = self.overlong_penalty, self.sampling.max_new_tokens
        if penalty is not None and penalty.buffer_tokens > limit:
            yield BrokenRule(
                "overlong_penalty.buffer_tokens",
                f"must be at most grpo.sampling.max_new_tokens ({limit}): lower it, or allow "
                "longer answers",
            )

    def _broken_judge_rules(self) -> Iterator[BrokenRule]:
        if self.judge is not None:
            if self.judge_weight is None:
                yield BrokenRule(
                    "judge_weight",
                    "is required with [grpo.judge]: set how much a verdict weighs beside the "
                    "reward, for example 0.35",
                )
            return
        for key in ("judge_weight", "judge_failure", "max_judge_dropped_fraction"):
            if self.given(key):
                yield BrokenRule(
                    key, "has no effect without a judge: add [grpo.judge], or remove the key"
                )
