"""Prompt files and text files as the model of a run reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from trainer.chat.dataset import read_prompts
from trainer.chat.messages import Prompt, PromptLine
from trainer.chat.prompts import open_template, prepare_prompts
from trainer.chat.template import ChatTemplate, VariableError
from trainer.chat.texts import DataFormat, Text, prepare_texts, read_data
from trainer.chat.vocabulary import Vocabulary
from trainer.config.models import RolloutConfig, RunConfig, SftConfig
from trainer.config.rewards import RolloutSection
from trainer.errors import DataError
from trainer.reward.protocol import objection

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of prompts or texts. ``where`` is who names it; ``most`` is how many of its lines are
    read, evenly spread, None for all."""

    path: Path
    where: str
    most: int | None = None


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


def data_format_of(config: SftConfig, path: Path) -> DataFormat:
    """How a file of texts is written, be it the one that is learnt or another."""
    section = config.sft
    return section.data_format if path == section.data else section.format_of(path)


def read_prompt_files(
    config: RolloutConfig, files: Sequence[DataFile]
) -> tuple[list[list[Prompt]], list[str]]:
    """The prompts of each file as the model reads them, and what to say of its template."""
    lines = [_lines(config, file) for file in files]
    with (
        Vocabulary.open(config.model.path) as vocabulary,
        chat_template(config, vocabulary) as template,
    ):
        prompts = [
            prepare_prompts(
                file.path,
                chosen,
                template,
                vocabulary,
                ctx=config.training.ctx,
                max_new_tokens=config.rollout.sampling.max_new_tokens,
            )
            for file, chosen in zip(files, lines, strict=True)
        ]
        return prompts, list(_remarks(template))


def read_text_files(
    config: SftConfig, files: Sequence[DataFile]
) -> tuple[list[list[Text]], list[str]]:
    """The texts of each file as the model reads them, and what to say of its template."""
    read = [_texts(config, file) for file in files]
    remarks = dict.fromkeys(remark for _, some in read for remark in some)
    return [texts for texts, _ in read], list(remarks)


def _lines(config: RolloutConfig, file: DataFile) -> list[PromptLine]:
    _see(file, "prompts")
    return _choose(read_lines(config.rollout, file.path), file.most)


def _see(file: DataFile, what: str) -> None:
    if not file.path.is_file():
        raise DataError(
            f"{file.where}: {file.path}: {no_file(file.path)}. Name that of the {what}."
        )


def no_file(path: Path) -> str:
    """What is said of ``path`` where a file should be and is none."""
    return "that is a folder, and a file is needed" if path.is_dir() else "there is no such file"


def _texts(config: SftConfig, file: DataFile) -> tuple[list[Text], list[str]]:
    _see(file, "texts")
    path, ctx, data_format = file.path, config.training.ctx, data_format_of(config, file.path)
    chosen = _choose(read_data(path, data_format), file.most)
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


def _choose(lines: Sequence[T], most: int | None) -> list[T]:
    """At most ``most`` of ``lines``, at even distances; all of them where it is None."""
    return [lines[i] for i in evenly_spread(len(lines), most)]
