"""``[ppo]`` and the sections below it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from trainer.config.base import LARGEST_SEED, BrokenRule, Section, Unset
from trainer.config.rewards import RolloutSection


class PpoSampling(Section):
    """How answers are drawn."""

    temperature: float = Field(ge=0.01, le=100)
    """Divides the logits, in the sampler and in the loss; lower is less varied."""

    top_p: float = Field(gt=0, le=1)
    """Answers are drawn from the most probable tokens whose probabilities reach this sum."""

    max_new_tokens: int = Field(ge=1)
    """Most tokens of an answer, its end token included."""

    seed: int = Field(ge=0, le=LARGEST_SEED)
    """Every answer's own seed is derived from it, so a run can be repeated."""


class CriticSection(Section):
    """Estimates the value of each token's state, which makes advantages less noisy."""

    enabled: bool = True
    """Without the critic every token of an answer gets the whitened reward of the answer."""

    kind: Literal["probe", "shared"] = "probe"
    """`probe` fits a linear head on frozen features; `shared` lets the value loss train the
    adapter too."""

    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount of the next token's value."""

    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """Generalised advantage estimation: 0 trusts the critic, 1 the rewards."""

    value_lr: float = Field(default=0.01, gt=0)
    """Learning rate of the `probe`, in units of the first returns' size; its bias learns ten times
    faster."""

    value_epochs: int = Field(default=8, ge=1)
    """Full-batch steps of the `probe` in one update."""

    value_loss_coefficient: float = Field(default=0.1, gt=0)
    """Weight of the `shared` critic's loss beside the policy's."""

    value_clip_range: float = Field(default=0.2, gt=0)
    """How far the `shared` critic's value may move in one update before its loss is clipped."""

    feature_dtype: Literal["f32", "f16", "bf16"] = "f32"
    """Number format in which the features are kept; the 16-bit ones halve their memory."""


class KlControl(Section):
    """Steers the KL coefficient; needs `kl_anchor = "reference"`."""

    target: float = Field(gt=0)
    """The KL divergence of a whole answer, in nats, to be held."""

    horizon: int = Field(ge=1)
    """Answers over which the coefficient adapts; more is slower."""


def _one_answer_each(fields: dict[str, Any]) -> int:
    return int(fields["rollout_batch_size"])


class PpoSection(RolloutSection):
    """Proximal policy optimization with one answer for each prompt."""

    updates: int = Field(ge=1)
    """How often the run samples, scores and trains."""

    rollout_batch_size: int = Field(ge=1)
    """Answers in one update."""

    ppo_epochs: int = Field(ge=1)
    """Optimizer passes over the answers of one update."""

    clip_range: float = Field(gt=0, lt=1)
    """How far the probability ratio may leave 1 before its gradient is cut."""

    kl_coefficient: float = Field(ge=0)
    """Weight of the penalty, per nat, on moving away from the anchor; 0 turns it off."""

    kl_anchor: Literal["rollout", "reference"] = "rollout"
    """Toward what the penalty pulls: the policy that drew the batch, in the loss; or the initial
    policy, taken off the reward token by token."""

    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Bonus for a spread-out policy; a small value keeps exploration alive."""

    minibatches: Annotated[int, Unset("`rollout_batch_size`")] = Field(
        default_factory=_one_answer_each, ge=1
    )
    """Optimizer steps in one pass; at most one for each answer."""

    sampling: PpoSampling
    """See the section."""

    critic: CriticSection = Field(default_factory=CriticSection)
    """See the section."""

    kl_control: KlControl | None = None
    """See the section."""

    @property
    def prompts_per_update(self) -> int:
        return self.rollout_batch_size

    @property
    def group_size(self) -> int:
        """Answers to one prompt."""
        return 1

    @property
    def epochs(self) -> int:
        return self.ppo_epochs

    @property
    def steps_per_pass(self) -> int:
        return self.minibatches

    def broken_rules(self) -> Iterator[BrokenRule]:
        yield from super().broken_rules()
        if self.minibatches > self.rollout_batch_size:
            yield BrokenRule(
                "minibatches",
                f"must be at most ppo.rollout_batch_size ({self.rollout_batch_size}), since a "
                "step needs an answer: lower it, or sample more answers",
            )
        if self.rollout_batch_size == 1 and not self.critic.enabled:
            yield BrokenRule(
                "rollout_batch_size",
                "leaves a single reward with nothing to compare it with, while the critic is "
                "off: sample at least 2 answers, or set ppo.critic.enabled = true",
            )
        yield from self._broken_kl_rules()

    def _broken_kl_rules(self) -> Iterator[BrokenRule]:
        if self.kl_control is None:
            return
        if self.kl_anchor != "reference":
            yield BrokenRule(
                "kl_control",
                'needs ppo.kl_anchor = "reference", the penalty whose coefficient it adapts: set '
                "that, or remove the section",
            )
        if self.kl_coefficient == 0:
            yield BrokenRule(
                "kl_control",
                "multiplies ppo.kl_coefficient, which is 0 and would stay 0: set the coefficient "
                "above 0, or remove the section",
            )
