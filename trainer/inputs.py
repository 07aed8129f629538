"""Everything that a run reads before it computes: cheap, and the source of most refusals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.chat.dataset import read_prompts
from trainer.chat.messages import Prompt, PromptLine
from trainer.chat.prompts import open_template, prepare_prompts
from trainer.chat.vocabulary import Vocabulary
from trainer.config.models import RolloutConfig
from trainer.config.rewards import RolloutSection
from trainer.errors import ConfigError, DataError, ModelError
from trainer.gguf.architecture import Architecture, describe
from trainer.gguf.file import GgufFile
from trainer.gguf.tensors import ALIASES, check_tensors, select_targets, unreadable
from trainer.reward.protocol import objection


@dataclass(frozen=True, slots=True)
class Inputs:
    """The model's file and description, the prompts as tokens, and the tensors to train."""

    file: GgufFile
    architecture: Architecture
    prompts: Sequence[Prompt]
    targets: Sequence[str]

    @property
    def longest_prompt(self) -> int:
        return max(len(p.tokens) for p in self.prompts)

    def adapter_size(self, rank: int) -> int:
        """How many parameters an adapter of ``rank`` on the targets has."""
        shapes = [self.file.tensors[name].shape for name in self.targets]
        return sum(rank * (rows + columns) for rows, columns in shapes)


def read_inputs(config: RolloutConfig) -> Inputs:
    """Read and check the model's header, the targets and every prompt.

    Raises ModelError, DataError, TemplateError or ConfigError, each with the file and the cure.
    """
    file = GgufFile(config.model.path)
    architecture = describe(file)
    check_tensors(file, architecture)
    if bad := unreadable(file):
        raise ModelError(
            f"{file.path}: {len(bad)} tensors are of a type that cannot be turned into floats: "
            f"{', '.join(bad[:5])}. Use another quantisation of this model."
        )
    if config.training.ctx > architecture.trained_context:
        raise ConfigError(
            f"{config.where('training.ctx')}: training.ctx = {config.training.ctx} is longer than "
            f"the {architecture.trained_context} tokens that {file.path.name} was trained for. "
            f"Lower it."
        )
    return Inputs(file, architecture, _read_prompts(config), _read_targets(config, architecture))


def _read_targets(config: RolloutConfig, architecture: Architecture) -> list[str]:
    try:
        return select_targets(architecture, _wanted(config.lora.targets))
    except ConfigError as error:
        raise ConfigError(f"{config.where('lora.targets')}: {error}") from error


def _wanted(targets: Sequence[str] | str) -> list[str]:
    return [targets] if isinstance(targets, str) else list(targets)


def read_lines(section: RolloutSection) -> list[PromptLine]:
    """The prompt file of an algorithm's section. Raises DataError with the file and its lines, also
    for those that its reward program could not be asked about."""
    asked = section.reward_command is not None
    return read_prompts(section.prompts, objection=objection if asked else None)


def _read_prompts(config: RolloutConfig) -> list[Prompt]:
    path, section = config.rollout.prompts, config.rollout
    if not path.is_file():
        where = config.where(f"{config.run.algorithm}.prompts")
        raise DataError(f"{where}: {path}: there is no such file. Name that of the prompts.")
    lines = read_lines(section)
    with (
        Vocabulary.open(config.model.path) as vocabulary,
        open_template(vocabulary, config.model.path) as template,
    ):
        return prepare_prompts(
            path,
            lines,
            template,
            vocabulary,
            ctx=config.training.ctx,
            max_new_tokens=section.sampling.max_new_tokens,
        )


def coverage(inputs: Inputs) -> str:
    """Which targets are trained in how many layers, for people."""
    parts = {part: alias for alias, part in ALIASES.items()}
    counts: dict[str, int] = {}
    for name in inputs.targets:
        alias = parts[name.split(".")[2]]
        counts[alias] = counts.get(alias, 0) + 1
    layers = inputs.architecture.layers
    return ", ".join(a if n == layers else f"{a} ({n} of {layers})" for a, n in counts.items())
