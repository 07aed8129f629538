"""A base and what was trained on it, side by side on the same questions (`retrograd bench`)."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np
import torch

from trainer.algorithms.comparison import Comparison, compare_answers, compare_losses
from trainer.algorithms.held_out_loss import HeldOutLoss
from trainer.algorithms.held_out_reward import HeldOutReward
from trainer.chat.messages import Message
from trainer.chat.texts import read_data
from trainer.config import RolloutConfig, RunConfig, SftConfig
from trainer.data import data_format_of, read_lines
from trainer.device import choose_device, keep_freed_pages
from trainer.errors import RetrogradError, TrainingError
from trainer.gguf.adapter import read_adapter
from trainer.inputs import (
    Inputs,
    Lora,
    TextInputs,
    read_asked,
)
from trainer.model.decoder import Decoder
from trainer.monitor.protocol import Event, GroupRecord, Monitor
from trainer.opening.model import (
    new_adapter,
    open_engine,
    open_learner,
    rollout_weights,
    threads_of,
)
from trainer.opening.parts import say_once
from trainer.opening.rollouts import listened_reward
from trainer.opening.sides import (
    Drawing,
    Questions,
    Side,
    Wish,
    check_side,
    choose_drawing,
    choose_questions,
    choose_sides,
    with_model,
)
from trainer.reward.program import RewardProgram, RewardReply, RewardRequest

FEW = 30
"""Below so many questions the interval leans on differences being spread like a bell curve."""

Content = str | tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Bench:
    """A comparison and what it was made with; ``notes`` say what limits the result. In SFT nothing
    is drawn."""

    config: RunConfig
    sides: tuple[Side, Side]
    questions: Questions
    drawing: Drawing | None
    comparison: Comparison
    notes: Sequence[str]


def bench(config: RunConfig, wish: Wish, monitor: Monitor) -> Bench:
    """Measure the base and the result of ``config`` as its evaluations do, on the same questions
    with the same seeds, so that the same call gives the same figures.

    Raises ConfigError (and its kinds) before anything is computed where a file does not fit; and
    RewardError or TrainingError.
    """
    drawing = choose_drawing(config, wish)
    questions = choose_questions(config, wish)
    sides = choose_sides(config, wish)
    inputs = read_asked(config, questions.where, questions.path, questions.most)
    for side in sides:
        check_side(side, inputs)
    torch.set_num_threads(threads_of(config))
    keep_freed_pages()
    if isinstance(config, SftConfig):
        assert isinstance(inputs, TextInputs)
        comparison = _losses(config, inputs, questions, sides, monitor)
    else:
        assert isinstance(inputs, Inputs)
        assert drawing is not None
        records = _answers(config, inputs, sides, drawing, monitor)
        comparison = compare_answers(*records)
    notes = list(_notes(config, wish, questions, comparison))
    return Bench(config, sides, questions, drawing, comparison, notes)


# -- answers and their rewards -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Told:
    """The reward program, with its progress told."""

    program: RewardProgram
    monitor: Monitor

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardReply]:
        return self.program.score(
            requests, lambda done, total: self.monitor.progress("reward", done, total)
        )


def _answers(
    config: RolloutConfig,
    inputs: Inputs,
    sides: Sequence[Side],
    drawing: Drawing,
    monitor: Monitor,
) -> list[Sequence[GroupRecord]]:
    """What each side answered, and what that was worth."""
    device = choose_device(config.model.device)
    records: list[Sequence[GroupRecord]] = []
    with listened_reward(config, device, monitor) as program:
        for model, together in groupby(sides, key=lambda side: side.model):
            records += _answers_of(
                config, with_model(inputs, model), list(together), drawing, program, monitor
            )
    return records


def _answers_of(
    config: RolloutConfig,
    inputs: Inputs,
    sides: Sequence[Side],
    drawing: Drawing,
    program: RewardProgram,
    monitor: Monitor,
) -> list[Sequence[GroupRecord]]:
    """The same for sides that have their model in common."""
    records = []
    monitor.progress("prepare", 0, 1)
    weights = rollout_weights(config, inputs)
    prompts, samples = inputs.prompts, drawing.samples
    with open_engine(
        config, inputs, weights, settings=drawing.settings, group_size=samples
    ) as engine:
        # First, so that an adapter which llama.cpp refuses does not cost a measurement.
        for side in reversed(sides):
            engine.swap_adapter(side.adapter)
        monitor.progress("prepare", 1, 1)
        for side in sides:
            engine.swap_adapter(side.adapter)
            monitor.event(_begins(side, f"{samples * len(prompts)} answers"))
            scorer = _Told(program, monitor)
            measure = HeldOutReward(drawing.seed, prompts, engine, scorer, monitor, samples)
            records.append(measure.measure().records)
    return records


def _begins(side: Side, what: str) -> Event:
    return Event("info", "bench", f"{side.name}: {side.file.name}, {what}")


# -- texts and their losses ----------------------------------------------------------------------


def _losses(
    config: SftConfig,
    inputs: TextInputs,
    questions: Questions,
    sides: Sequence[Side],
    monitor: Monitor,
) -> Comparison:
    """The loss of each text on each side."""
    losses: list[list[float]] = []
    for model, together in groupby(sides, key=lambda side: side.model):
        losses += _losses_of(config, with_model(inputs, model), list(together), monitor)
    before, after = losses
    contents = _contents(config, questions.path)
    return compare_losses(inputs.texts, [contents[t.line] for t in inputs.texts], before, after)


def _losses_of(
    config: SftConfig, inputs: TextInputs, sides: Sequence[Side], monitor: Monitor
) -> list[list[float]]:
    """The same for sides that have their model in common."""
    device = choose_device(config.model.device)
    decoder = Decoder(inputs.file, device, context=config.training.ctx)
    return [_of_texts(config, inputs, decoder, side, monitor) for side in sides]


def _of_texts(
    config: SftConfig, inputs: TextInputs, decoder: Decoder, side: Side, monitor: Monitor
) -> list[float]:
    """The loss of each text under one side; ``inputs`` and ``decoder`` are of its model."""
    if side.adapter is not None:
        stored = read_adapter(side.adapter, inputs.architecture)
        lora = Lora(stored.rank, stored.alpha, stored.dtype, stored.targets, stored)
        inputs = replace(inputs, lora=lora)
    adapter = new_adapter(config, inputs, decoder.device)
    learner = open_learner(config, inputs, decoder, adapter, say_once(monitor))
    monitor.event(_begins(side, f"{len(inputs.texts)} texts"))
    measure = HeldOutLoss(inputs.texts, learner, monitor)
    losses = measure.losses(adapter if side.adapter is not None else None)
    if not np.isfinite(losses).all():
        raise TrainingError(
            f"{side.file}: the loss of a text is not finite under it: the file is damaged, or "
            f"training has diverged."
        )
    return losses


def _contents(config: SftConfig, path: Path) -> dict[int, Content]:
    return {line.number: line.content for line in read_data(path, data_format_of(config, path))}


# -- what limits the result ----------------------------------------------------------------------


def _notes(
    config: RunConfig, wish: Wish, questions: Questions, comparison: Comparison
) -> Iterator[str]:
    noun = "texts" if isinstance(config, SftConfig) else "prompts"
    if questions.trained_on:
        yield (
            f"These {noun} are the ones that the run trains on, so this shows what was learnt by "
            f"heart as well as what carries over. Name others with {wish.called('data')}, or in "
            f"[evaluation] data."
        )
    elif shared := _shared(config, comparison):
        yield f"{shared} of the {len(comparison.pairs)} {noun} are also trained on."
    if len(comparison.pairs) < FEW:
        rough = f"The interval is rough with fewer than {FEW} {noun}."
        if not isinstance(config, SftConfig):
            rough += f" More {noun} would tell more than more answers to each of these."
        yield rough
    if config.lora.init_adapter is not None and wish.baseline is None:
        yield (
            f"The run began with {config.lora.init_adapter.name}, so a part of the change is that "
            f"adapter's. {wish.called('baseline')} "
            f"{shlex.quote(str(config.lora.init_adapter))} leaves it out."
        )


def _shared(config: RunConfig, comparison: Comparison) -> int:
    """How many of the questions are trained on as well; 0 where what is trained on cannot be
    read any more."""
    try:
        if isinstance(config, SftConfig):
            known = set(_contents(config, config.sft.data).values())
        else:
            known = {line.messages for line in read_lines(config.rollout)}
    except RetrogradError:
        return 0
    return sum(pair.content in known for pair in comparison.pairs)
