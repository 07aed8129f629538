"""The whole configuration, one class for each algorithm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, PrivateAttr

from trainer.config.base import Algorithm, BrokenRule, Section, Unset
from trainer.config.common import (
    AuditSection,
    CheckpointSection,
    EvaluationSection,
    LoraSection,
    MetricsSection,
    ModelSection,
    ObserveSection,
    OutputSection,
    ReferenceSection,
    RunSection,
)
from trainer.config.grpo import GrpoSection
from trainer.config.lines import Origin
from trainer.config.ppo import PpoSection
from trainer.config.sft import SftSection
from trainer.config.training import TrainingSection


class CommonConfig(Section):
    """The sections that every run has. Validated with an ``Origin`` as context."""

    expected_algorithm: ClassVar[Algorithm]

    run: RunSection
    """See the section."""

    model: ModelSection
    """See the section."""

    output: OutputSection
    """See the section."""

    lora: LoraSection = Field(default_factory=LoraSection)
    """See the section."""

    training: TrainingSection = Field(default_factory=TrainingSection)
    """See the section."""

    reference: Annotated[ReferenceSection | None, Unset("the initial policy")] = None
    """See the section."""

    evaluation: EvaluationSection | None = None
    """See the section."""

    checkpoint: CheckpointSection | None = None
    """See the section."""

    metrics: MetricsSection = Field(default_factory=MetricsSection)
    """See the section."""

    observe: ObserveSection | None = None
    """See the section."""

    audit: AuditSection = Field(default_factory=AuditSection)
    """See the section."""

    _origin: Origin = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:  # noqa: ANN401  pydantic's signature
        if not isinstance(context, Origin):
            raise TypeError("a configuration is validated with its Origin as context")
        self._origin = context

    @property
    def source(self) -> Path:
        """The TOML file's absolute path."""
        return self._origin.source

    @property
    def folder(self) -> Path:
        """The TOML file's folder, which its relative paths and its programs start from."""
        return self._origin.folder

    def where(self, key: str) -> str:
        """``file:line`` of a dotted key, or of the nearest section around it."""
        return self._origin.where(tuple(key.split(".")))

    def broken_rules(self) -> Iterator[BrokenRule]:
        if self.run.algorithm != self.expected_algorithm:
            yield BrokenRule("run.algorithm", f'must be "{self.expected_algorithm}" here')
        if self.model.path in (self.output.path, self.output.adapter_path):
            yield BrokenRule(
                "output.path", "is the base model itself, which a run never overwrites: change it"
            )
        if self.expected_algorithm != "sft" and self.lora.init_adapter and self.lora.given("seed"):
            yield BrokenRule(
                "lora.seed",
                "cannot stand beside lora.init_adapter, which already fixes the weights that it "
                "would draw: remove one of the two",
            )
        checkpoint = self.checkpoint
        if checkpoint is None:
            return
        if checkpoint.mode != "steps" and self.evaluation is None:
            yield BrokenRule(
                "checkpoint.mode",
                'needs [evaluation] to know which checkpoint is best: add it, or use "steps"',
            )
        if checkpoint.resume_from is not None and self.lora.init_adapter is not None:
            yield BrokenRule(
                "checkpoint.resume_from",
                "cannot stand beside lora.init_adapter, since a checkpoint holds its own adapter: "
                "remove one of the two, or go on with `retrograd train --resume`",
            )


def _answer_beyond_context(section: str, max_new_tokens: int, ctx: int) -> Iterator[BrokenRule]:
    if max_new_tokens >= ctx:
        yield BrokenRule(
            f"{section}.sampling.max_new_tokens",
            f"must be less than training.ctx ({ctx}), which also holds the prompt: lower it, or "
            "raise training.ctx",
        )


class GrpoConfig(CommonConfig):
    """A GRPO run."""

    expected_algorithm = "grpo"

    grpo: GrpoSection
    """See the section."""

    @property
    def rollout(self) -> GrpoSection:
        """What is sampled, how it is scored and how often: the algorithm's own section."""
        return self.grpo

    def broken_rules(self) -> Iterator[BrokenRule]:
        yield from super().broken_rules()
        yield from _answer_beyond_context(
            "grpo", self.grpo.sampling.max_new_tokens, self.training.ctx
        )
        fanout = self.training.shared_prefix_fanout
        if isinstance(fanout, int) and fanout > self.grpo.group_size:
            yield BrokenRule(
                "training.shared_prefix_fanout",
                f"cannot be met, since grpo.group_size gives a prompt {self.grpo.group_size} "
                'answers: lower it, or use "max"',
            )


class PpoConfig(CommonConfig):
    """A PPO run."""

    expected_algorithm = "ppo"

    ppo: PpoSection
    """See the section."""

    @property
    def rollout(self) -> PpoSection:
        """What is sampled, how it is scored and how often: the algorithm's own section."""
        return self.ppo

    def broken_rules(self) -> Iterator[BrokenRule]:
        yield from super().broken_rules()
        yield from _answer_beyond_context(
            "ppo", self.ppo.sampling.max_new_tokens, self.training.ctx
        )


class SftConfig(CommonConfig):
    """An SFT run."""

    expected_algorithm = "sft"

    sft: SftSection
    """See the section."""


RolloutConfig = GrpoConfig | PpoConfig
RunConfig = RolloutConfig | SftConfig

CONFIGS: dict[str, type[GrpoConfig] | type[PpoConfig] | type[SftConfig]] = {
    "grpo": GrpoConfig,
    "ppo": PpoConfig,
    "sft": SftConfig,
}
