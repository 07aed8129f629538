"""What `retrograd bench` compares: two policies, questions for both, and how answers are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

from trainer.config.models import RunConfig, SftConfig
from trainer.errors import ConfigError, ModelError
from trainer.gguf.adapter import read_adapter
from trainer.gguf.architecture import describe
from trainer.gguf.file import GgufFile
from trainer.gguf.fitting import check_fits
from trainer.gguf.tensors import check_tensors
from trainer.inputs import ModelInputs, TextInputs, learnt_from
from trainer.opening.model import settings_of
from trainer.rollout.answers import SamplingSettings

DEFAULT_SAMPLES = 4
Given = TypeVar("Given", bound=ModelInputs)


@dataclass(frozen=True, slots=True)
class Wish:
    """What is compared, where it is not what the configuration says. ``result`` is an adapter or a
    model in place of the run's output; ``baseline`` an adapter in place of the bare base; ``data``
    other prompts or texts, of which ``limit`` are taken at even distances. The rest is for answers:
    ``samples`` to each prompt, at another ``temperature``, or the most probable tokens.

    ``names`` are what the person who wishes calls these fields, where that is something else.
    """

    result: Path | None = None
    baseline: Path | None = None
    data: Path | None = None
    limit: int | None = None
    samples: int | None = None
    temperature: float | None = None
    greedy: bool = False
    names: Mapping[str, str] = field(default_factory=dict)

    def called(self, wish: str) -> str:
        return self.names.get(wish, wish)


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two policies: ``adapter`` on ``model``, or the model alone."""

    name: Literal["base", "baseline", "adapter", "model"]
    model: Path
    adapter: Path | None

    @property
    def file(self) -> Path:
        """What makes it this one."""
        return self.adapter or self.model


@dataclass(frozen=True, slots=True)
class Questions:
    """A file of prompts or texts, of which at most ``most`` are taken. ``where`` is who names it,
    and ``trained_on`` tells whether it is what the run trains on."""

    path: Path
    where: str
    most: int | None
    trained_on: bool


@dataclass(frozen=True, slots=True)
class Drawing:
    """How answers are drawn, and how many to a prompt."""

    settings: SamplingSettings
    samples: int
    seed: int
    is_greedy: bool = False


def choose_questions(config: RunConfig, wish: Wish) -> Questions:
    """Those that are wished for, else those held out, else those trained on."""
    key, own = learnt_from(config)
    path, where, most = own, config.where(key), wish.limit
    if wish.data is not None:
        path, where = wish.data, wish.called("data")
    elif config.evaluation is not None:
        path, where = config.evaluation.data, config.where("evaluation.data")
        most = wish.limit or config.evaluation.max_examples
    return Questions(path, where, most, trained_on=path.resolve() == own.resolve())


def choose_sides(config: RunConfig, wish: Wish) -> tuple[Side, Side]:
    """What is compared with what. Raises ConfigError where a file is not there, or is no GGUF."""
    base = config.model.path
    result = wish.result or config.output.path
    where = wish.called("result") if wish.result else config.where("output.path")
    if not result.is_file():
        raise ConfigError(
            f"{where}: {result}: there is no such file, so there is nothing to compare the base "
            f"with. Train with `retrograd train`, or name the adapter with {wish.called('result')}."
        )
    if result.resolve() == base.resolve():
        raise ConfigError(f"{where}: {result}: this is the base itself. Name what was trained.")
    first = Side("base", base, None)
    if wish.baseline is not None:
        if not wish.baseline.is_file():
            name = wish.called("baseline")
            raise ConfigError(
                f"{name}: {wish.baseline}: there is no such file. Name an adapter, or leave "
                f"{name} out to compare with the base alone."
            )
        first = Side("baseline", base, wish.baseline)
    if GgufFile(result).text("general.type") == "adapter":
        return first, Side("adapter", base, result)
    return first, Side("model", result, None)


def check_side(side: Side, inputs: ModelInputs) -> None:
    """See that a file fits the base. Raises ModelError."""
    if side.adapter is not None:
        check_fits(GgufFile(side.adapter), inputs.file)
        if isinstance(inputs, TextInputs):  # whose losses torch computes
            read_adapter(side.adapter, inputs.architecture)
    if side.model == inputs.file.path:
        return
    other = with_model(inputs, side.model)
    check_tensors(other.file, other.architecture)
    if other.file.tokens != inputs.file.tokens:
        raise ModelError(
            f"{side.model}: this model has another vocabulary than the base, {inputs.file.path}, "
            f"so the two do not read the same prompts. Name a model that was made from the base."
        )


def with_model(inputs: Given, model: Path) -> Given:
    """``inputs`` for another model file, one that reads the same vocabulary."""
    if model == inputs.file.path:
        return inputs
    file = GgufFile(model)
    return replace(inputs, file=file, architecture=describe(file))


def choose_drawing(config: RunConfig, wish: Wish) -> Drawing | None:
    """As the run draws, where nothing else is wished for; None in SFT, which draws nothing. Raises
    ConfigError for wishes that cannot be met."""
    if isinstance(config, SftConfig):
        _refuse_drawing(config, wish)
        return None
    settings, seed = settings_of(config), config.rollout.sampling.seed
    if not wish.greedy:
        if wish.temperature is not None:
            settings = replace(settings, temperature=wish.temperature)
        return Drawing(settings, wish.samples or DEFAULT_SAMPLES, seed)
    greedy = wish.called("greedy")
    if wish.temperature is not None:
        raise ConfigError(
            f"{wish.called('temperature')} {wish.temperature:g} beside {greedy}, which takes "
            f"the most probable token at any temperature. Leave out one of the two."
        )
    if wish.samples is not None and wish.samples > 1:
        raise ConfigError(
            f"{wish.called('samples')} {wish.samples} beside {greedy}: a prompt has one "
            f"greedy answer. Leave out one of the two."
        )
    return Drawing(SamplingSettings.greedy(settings.max_new_tokens), 1, seed, is_greedy=True)


def _refuse_drawing(config: SftConfig, wish: Wish) -> None:
    given = {
        "samples": wish.samples is not None,
        "temperature": wish.temperature is not None,
        "greedy": wish.greedy,
    }
    if named := [wish.called(name) for name, is_given in given.items() if is_given]:
        raise ConfigError(
            f"{' and '.join(named)}: {config.source} describes a run of SFT, whose held-out texts "
            f"are scored by their loss, and nothing is sampled. Leave it out."
        )
