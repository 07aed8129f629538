"""Everything that a run reads before it computes: cheap, and the source of most refusals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.chat.dataset import read_prompts
from trainer.chat.messages import Prompt, PromptLine
from trainer.chat.prompts import open_template, prepare_prompts
from trainer.chat.template import ChatTemplate, VariableError
from trainer.chat.texts import DataFormat, Text, prepare_texts, read_data
from trainer.chat.vocabulary import Vocabulary
from trainer.config.availability import resolved_params
from trainer.config.models import RolloutConfig, RunConfig, SftConfig
from trainer.config.rewards import RolloutSection
from trainer.config.sft import steps_of
from trainer.errors import ConfigError, DataError, ModelError
from trainer.gguf.adapter import AdapterDtype, StoredAdapter, read_adapter
from trainer.gguf.architecture import Architecture, describe
from trainer.gguf.file import GgufFile
from trainer.gguf.tensors import check_tensors, select_targets, short_name, unreadable
from trainer.reward.protocol import objection


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
    prompts, held_out, remarks = _read_prompts(config)
    lora = _read_lora(config, architecture)
    return Inputs(file, architecture, lora, prompts, held_out, remarks=tuple(remarks))


def read_text_inputs(config: SftConfig) -> TextInputs:
    """Read and check the model's header, the targets and every text. Raises as `read_inputs`."""
    file, architecture = _read_model(config)
    texts, held_out, remarks = _read_texts(config)
    lora = _read_lora(config, architecture)
    return TextInputs(file, architecture, lora, texts, held_out, remarks=tuple(remarks))


def read_any(config: RunConfig) -> AnyInputs:
    """What a run of ``config`` reads. Raises as `read_inputs`."""
    return read_text_inputs(config) if isinstance(config, SftConfig) else read_inputs(config)


def planned_updates(config: RunConfig, inputs: AnyInputs) -> int:
    """How many updates the run has; in SFT one is an optimizer step."""
    if isinstance(config, SftConfig):
        assert isinstance(inputs, TextInputs)
        return config.training.epochs * steps_of(len(inputs.texts))
    return config.rollout.updates


def data_files(config: RunConfig) -> dict[str, Path]:
    """The files beside the base that decide what is learnt, by the key that names them."""
    if isinstance(config, SftConfig):
        files = {"sft.data": config.sft.data}
    else:
        files = {f"{config.run.algorithm}.prompts": config.rollout.prompts}
    if config.evaluation is not None:
        files["evaluation.data"] = config.evaluation.data
    if config.lora.init_adapter is not None:
        files["lora.init_adapter"] = config.lora.init_adapter
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
    try:
        targets = select_targets(architecture, _wanted(section.targets))
    except ConfigError as error:
        raise ConfigError(f"{config.where('lora.targets')}: {error}") from error
    return Lora(section.rank, section.alpha, section.dtype, targets)


def _read_start(config: RunConfig, path: Path, architecture: Architecture) -> Lora:
    where = config.where("lora.init_adapter")
    if not path.is_file():
        raise ConfigError(
            f"{where}: {path}: there is no such file. Name the adapter to start from, or leave "
            f"lora.init_adapter out."
        )
    try:
        stored = read_adapter(path, architecture)
    except ModelError as error:
        raise ModelError(f"{where}: {error}") from error
    return Lora(stored.rank, stored.alpha, stored.dtype, stored.targets, stored)


def _wanted(targets: Sequence[str] | str) -> list[str]:
    return [targets] if isinstance(targets, str) else list(targets)


def read_lines(section: RolloutSection, path: Path | None = None) -> list[PromptLine]:
    """The prompt file of an algorithm's section, or another one for the same use. Raises DataError
    with the file and its lines, also for those that its reward program could not be asked about."""
    asked = section.reward_command is not None
    return read_prompts(path or section.prompts, objection=objection if asked else None)


def chat_template(config: RunConfig, vocabulary: Vocabulary) -> ChatTemplate:
    """The model's chat template as ``config`` wants it rendered. Raises as `open_template`, and for
    a variable with its place in the file."""
    section = config.model
    try:
        return open_template(
            vocabulary, section.path, section.template_variables, merge_system=section.merge_system
        )
    except VariableError as error:
        key = f"model.template_variables.{error.variable}"
        raise VariableError(
            error.variable, f"{config.where(key)}: {key}: {error}: correct the name, or remove it"
        ) from error


def _remarks(template: ChatTemplate) -> Iterator[str]:
    """What ``template`` did with the conversations that it rendered."""
    if template.dated:
        fixed = "date_string" in template.reads
        yield (
            "the chat template writes today's date into the conversations, so the same run reads "
            "other tokens on another day: "
            + (
                "to fix the date, set date_string in [model.template_variables]"
                if fixed
                else "to repeat it exactly, use a copy of the model whose template has a fixed date"
            )
        )
    if template.merges_system:
        yield (
            "the chat template takes no system message: each one is put before the first user "
            "message, since model.merge_system = true"
        )


def _split_lines(texts: Sequence[Text], path: Path) -> Iterator[str]:
    lines = Counter(text.line for text in texts)
    if split := sum(count > 1 for count in lines.values()):
        yield (
            f"the chat template rewrites earlier answers of a conversation, so {split} of "
            f"{len(lines)} lines of {path.name} became a text for each answer, {len(texts)} in all"
        )


def _read_prompts(config: RolloutConfig) -> tuple[list[Prompt], list[Prompt], list[str]]:
    """The prompts to train on, those held out, and what to say of their template."""
    section, evaluation = config.rollout, config.evaluation
    key = f"{config.run.algorithm}.prompts"
    files = [(section.prompts, _lines(config, key, section.prompts))]
    if evaluation is not None:
        lines = _lines(config, "evaluation.data", evaluation.data)
        places = evenly_spread(len(lines), evaluation.max_examples)
        files.append((evaluation.data, [lines[i] for i in places]))
    with (
        Vocabulary.open(config.model.path) as vocabulary,
        chat_template(config, vocabulary) as template,
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
        remarks = list(_remarks(template))
    return prompts, held_out[0] if held_out else [], remarks


def _lines(config: RolloutConfig, key: str, path: Path) -> list[PromptLine]:
    _see(config, key, path, "prompts")
    return read_lines(config.rollout, path)


def _see(config: RunConfig, key: str, path: Path, what: str) -> None:
    if not path.is_file():
        raise DataError(
            f"{config.where(key)}: {path}: there is no such file. Name that of the {what}."
        )


def _read_texts(config: SftConfig) -> tuple[list[Text], list[Text], list[str]]:
    """The texts to learn, those held out, and what to say of their template."""
    section, evaluation = config.sft, config.evaluation
    texts, remarks = _texts(config, "sft.data", section.data, section.data_format)
    if evaluation is None:
        return texts, [], remarks
    held = evaluation.data
    most = evaluation.max_examples
    held_out, more = _texts(config, "evaluation.data", held, section.format_of(held), most)
    return texts, held_out, list(dict.fromkeys([*remarks, *more]))


def _texts(
    config: SftConfig, key: str, path: Path, data_format: DataFormat, most: int | None = None
) -> tuple[list[Text], list[str]]:
    _see(config, key, path, "texts")
    lines = read_data(path, data_format)
    chosen = [lines[i] for i in evenly_spread(len(lines), most)]
    ctx = config.training.ctx
    with Vocabulary.open(config.model.path) as vocabulary:
        if data_format == "text":
            return prepare_texts(path, chosen, None, vocabulary, ctx=ctx), []
        with chat_template(config, vocabulary) as template:
            texts = prepare_texts(path, chosen, template, vocabulary, ctx=ctx)
            return texts, [*_remarks(template), *_split_lines(texts, path)]


def evenly_spread(count: int, most: int | None) -> list[int]:
    """``most`` of the places 0 to ``count`` − 1 at even distances, the first always; all of them
    where ``most`` is None or not less."""
    if most is None or most >= count:
        return list(range(count))
    return [i * count // most for i in range(most)]


def coverage(inputs: ModelInputs) -> str:
    """Which targets are trained in how many layers, for people."""
    counts: dict[str, int] = {}
    for name in inputs.lora.targets:
        alias = short_name(name.split(".")[2])
        counts[alias] = counts.get(alias, 0) + 1
    layers = inputs.architecture.layers
    return ", ".join(a if n == layers else f"{a} ({n} of {layers})" for a, n in counts.items())
