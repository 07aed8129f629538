"""Everything that a run reads before it computes: cheap, and the source of most refusals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.chat.messages import Prompt
from trainer.chat.texts import Text
from trainer.config.availability import resolved_params
from trainer.config.models import RolloutConfig, RunConfig, SftConfig
from trainer.config.sft import steps_of
from trainer.data import DataFile, no_file, read_prompt_files, read_text_files
from trainer.errors import ConfigError, ModelError
from trainer.gguf.adapter import AdapterDtype, StoredAdapter, read_adapter
from trainer.gguf.architecture import Architecture, describe
from trainer.gguf.file import GgufFile
from trainer.gguf.tensors import check_tensors, select_targets, short_name, unreadable


@dataclass(frozen=True, slots=True)
class Lora:
    """The adapter to train: as configured, or as the file has it that the run starts from."""

    rank: int
    alpha: float
    dtype: AdapterDtype
    targets: Sequence[str]
    start: StoredAdapter | None = None


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """The model's file and description, and the adapter to train on it.

    ``remarks`` tell what the model's chat template does that people should know.
    """

    file: GgufFile
    architecture: Architecture
    lora: Lora
    remarks: Sequence[str] = field(default=(), kw_only=True)

    @property
    def adapter_size(self) -> int:
        """How many parameters the adapter has."""
        shapes = [self.file.tensors[name].shape for name in self.lora.targets]
        return sum(
            math.prod(experts) * self.lora.rank * (rows + columns)
            for *experts, rows, columns in shapes
        )

    def params(self, config: RunConfig) -> dict[str, Any]:
        """`resolved_params`, with what a file to start from brings."""
        params = resolved_params(config)
        if self.lora.start is not None:
            own = {"rank": self.lora.rank, "alpha": self.lora.alpha, "dtype": self.lora.dtype}
            params["lora"] |= own | {"targets": list(self.lora.targets)}
        return params


@dataclass(frozen=True, slots=True)
class Inputs(ModelInputs):
    """What a run that samples reads: the prompts as tokens, too."""

    prompts: Sequence[Prompt]
    held_out: Sequence[Prompt]

    @property
    def longest_prompt(self) -> int:
        """In tokens, of those trained on and those held out."""
        return max(len(p.tokens) for p in (*self.prompts, *self.held_out))


@dataclass(frozen=True, slots=True)
class TextInputs(ModelInputs):
    """What a run of SFT reads: the texts as tokens, too."""

    texts: Sequence[Text]
    held_out: Sequence[Text]

    @property
    def longest_text(self) -> int:
        """In tokens, of those trained on and those held out."""
        return max(text.length for text in (*self.texts, *self.held_out))


AnyInputs = Inputs | TextInputs


def read_inputs(config: RolloutConfig) -> Inputs:
    """Read and check the model's header, the targets and every prompt.

    Raises ModelError, DataError, TemplateError or ConfigError, each with the file and the cure.
    """
    file, architecture = _read_model(config)
    (prompts, *held), remarks = read_prompt_files(config, _files(config))
    lora = _read_lora(config, architecture)
    held_out = held[0] if held else []
    return Inputs(file, architecture, lora, prompts, held_out, remarks=tuple(remarks))


def read_text_inputs(config: SftConfig) -> TextInputs:
    """Read and check the model's header, the targets and every text. Raises as `read_inputs`."""
    file, architecture = _read_model(config)
    (texts, *held), remarks = read_text_files(config, _files(config))
    lora = _read_lora(config, architecture)
    held_out = held[0] if held else []
    return TextInputs(file, architecture, lora, texts, held_out, remarks=tuple(remarks))


def read_any(config: RunConfig) -> AnyInputs:
    """What a run of ``config`` reads. Raises as `read_inputs`."""
    return read_text_inputs(config) if isinstance(config, SftConfig) else read_inputs(config)


def read_asked(config: RunConfig, where: str, path: Path, most: int | None) -> AnyInputs:
    """What a run of ``config`` would read if the prompts or texts of ``path``, at most ``most`` of
    them, were all that it has; ``where`` is who names the file. The adapter is a new one, whatever
    the run begins with. Raises as `read_inputs`."""
    file, architecture = _read_model(config)
    lora = _new_lora(config, architecture)
    asked = [DataFile(path, where, most)]
    if isinstance(config, SftConfig):
        [texts], remarks = read_text_files(config, asked)
        return TextInputs(file, architecture, lora, texts, (), remarks=tuple(remarks))
    [prompts], remarks = read_prompt_files(config, asked)
    return Inputs(file, architecture, lora, prompts, (), remarks=tuple(remarks))


def planned_updates(config: RunConfig, inputs: AnyInputs) -> int:
    """How many updates the run has; in SFT one is an optimizer step."""
    if isinstance(config, SftConfig):
        assert isinstance(inputs, TextInputs)
        return config.training.epochs * steps_of(len(inputs.texts))
    return config.rollout.updates


def learnt_from(config: RunConfig) -> tuple[str, Path]:
    """The file of prompts or texts that the run trains on: the key that names it, and its path."""
    if isinstance(config, SftConfig):
        return "sft.data", config.sft.data
    return f"{config.run.algorithm}.prompts", config.rollout.prompts


def data_files(config: RunConfig) -> dict[str, Path]:
    """The files beside the base that decide what is learnt, by the key that names them."""
    files = dict([learnt_from(config)])
    if config.evaluation is not None:
        files["evaluation.data"] = config.evaluation.data
    if config.lora.init_adapter is not None:
        files["lora.init_adapter"] = config.lora.init_adapter
    return files


def _files(config: RunConfig) -> list[DataFile]:
    """What is trained on, and what is held out where something is."""
    key, path = learnt_from(config)
    files = [DataFile(path, config.where(key))]
    if (held := config.evaluation) is not None:
        files.append(DataFile(held.data, config.where("evaluation.data"), held.max_examples))
    return files


def _read_model(config: RunConfig) -> tuple[GgufFile, Architecture]:
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
    return file, architecture


def _read_lora(config: RunConfig, architecture: Architecture) -> Lora:
    section = config.lora
    if section.init_adapter is not None:
        return _read_start(config, section.init_adapter, architecture)
    return _new_lora(config, architecture)


def _new_lora(config: RunConfig, architecture: Architecture) -> Lora:
    section = config.lora
    try:
        targets = select_targets(architecture, _wanted(section.targets))
    except ConfigError as error:
        raise ConfigError(f"{config.where('lora.targets')}: {error}") from error
    return Lora(section.rank, section.alpha, section.dtype, targets)


def _read_start(config: RunConfig, path: Path, architecture: Architecture) -> Lora:
    where = config.where("lora.init_adapter")
    if not path.is_file():
        raise ConfigError(
            f"{where}: {path}: {no_file(path)}. Name the adapter to start from, or leave "
            f"lora.init_adapter out."
        )
    try:
        stored = read_adapter(path, architecture)
    except ModelError as error:
        raise ModelError(f"{where}: {error}") from error
    return Lora(stored.rank, stored.alpha, stored.dtype, stored.targets, stored)


def _wanted(targets: Sequence[str] | str) -> list[str]:
    return [targets] if isinstance(targets, str) else list(targets)


def coverage(inputs: ModelInputs) -> str:
    """Which targets are trained in how many layers, for people."""
    counts: dict[str, int] = {}
    for name in inputs.lora.targets:
        alias = short_name(name.split(".")[2])
        counts[alias] = counts.get(alias, 0) + 1
    layers = inputs.architecture.layers
    return ", ".join(a if n == layers else f"{a} ({n} of {layers})" for a, n in counts.items())
