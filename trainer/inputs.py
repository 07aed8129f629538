"""Everything that a run reads before it computes: cheap, and the source of most refusals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
    held_out: Sequence[Prompt]
    targets: Sequence[str]

    @property
    def longest_prompt(self) -> int:
        """In tokens, of those trained on and those held out."""
        return max(len(p.tokens) for p in (*self.prompts, *self.held_out))

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
    prompts, held_out = _read_prompts(config)
    return Inputs(file, architecture, prompts, held_out, _read_targets(config, architecture))


def _read_targets(config: RolloutConfig, architecture: Architecture) -> list[str]:
    try:
        return select_targets(architecture, _wanted(config.lora.targets))
    except ConfigError as error:
        raise ConfigError(f"{config.where('lora.targets')}: {error}") from error


def _wanted(targets: Sequence[str] | str) -> list[str]:
    return [targets] if isinstance(targets, str) else list(targets)


def read_lines(section: RolloutSection, path: Path | None = None) -> list[PromptLine]:
    """The prompt file of an algorithm's section, or another one for the same use. Raises DataError
    with the file and its lines, also for those that its reward program could not be asked about."""
    asked = section.reward_command is not None
    return read_prompts(path or section.prompts, objection=objection if asked else None)


def _read_prompts(config: RolloutConfig) -> tuple[list[Prompt], list[Prompt]]:
    """The prompts to train on, and those held out."""
    section, evaluation = config.rollout, config.evaluation
    key = f"{config.run.algorithm}.prompts"
    files = [(section.prompts, _lines(config, key, section.prompts))]
    if evaluation is not None:
        lines = _lines(config, "evaluation.data", evaluation.data)
        places = evenly_spread(len(lines), evaluation.max_examples)
        files.append((evaluation.data, [lines[i] for i in places]))
    with (
        Vocabulary.open(config.model.path) as vocabulary,
        open_template(vocabulary, config.model.path) as template,
    ):
        prompts, *held_out = [
            prepare_prompts(
                path,
                lines,
                template,
                vocabulary,
                ctx=config.training.ctx,
                max_new_tokens=section.sampling.max_new_tokens,
            )
            for path, lines in files
        ]
    return prompts, held_out[0] if held_out else []


def _lines(config: RolloutConfig, key: str, path: Path) -> list[PromptLine]:
    if not path.is_file():
        raise DataError(
            f"{config.where(key)}: {path}: there is no such file. Name that of the prompts."
        )
    return read_lines(config.rollout, path)


def evenly_spread(count: int, most: int | None) -> list[int]:
    """``most`` of the places 0 to ``count`` − 1 at even distances, the first always; all of them
    where ``most`` is None or not less."""
    if most is None or most >= count:
        return list(range(count))
    return [i * count // most for i in range(most)]


def coverage(inputs: Inputs) -> str:
    """Which targets are trained in how many layers, for people."""
    parts = {part: alias for alias, part in ALIASES.items()}
    counts: dict[str, int] = {}
    for name in inputs.targets:
        alias = parts[name.split(".")[2]]
        counts[alias] = counts.get(alias, 0) + 1
    layers = inputs.architecture.layers
    return ", ".join(a if n == layers else f"{a} ({n} of {layers})" for a, n in counts.items())
