"""Supervised fine-tuning: the adapter learns to say what the texts say.

An update is one optimizer step on a few texts. Its loss is the mean cross-entropy over all learnt
tokens of the step, so a token counts alike in a short text and in a long one, and however the step
is cut into passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainer.algorithms import metrics
from trainer.algorithms.course import Course
from trainer.algorithms.schedules import learning_rate_factor
from trainer.algorithms.stopwatch import Stopwatch
from trainer.chat.texts import Text
from trainer.checkpoint.file import State
from trainer.config.models import SftConfig
from trainer.config.sft import steps_of
from trainer.model.learner import Learner
from trainer.monitor.protocol import Monitor


@dataclass(frozen=True, slots=True)
class TextOrder:
    """Which texts a step learns, as a function of its place alone.

    An epoch has each text once, dealt out to its steps so that no two differ by more than one text.
    ``shuffled`` epochs have an order each; otherwise it is that of the file.
    """

    count: int
    shuffled: bool
    seed: int

    @property
    def steps(self) -> int:
        """Of an epoch."""
        return steps_of(self.count)

    def of(self, update: int) -> list[int]:
        """The texts (by index) of an update, counted from 1."""
        epoch, step = divmod(update - 1, self.steps)
        size, more = divmod(self.count, self.steps)
        start = step * size + min(step, more)
        places = range(start, start + size + (step < more))
        if not self.shuffled:
            return list(places)
        order = np.random.default_rng((self.seed, epoch)).permutation(self.count)
        return [int(order[place]) for place in places]


def accumulate(learner: Learner, texts: Sequence[Text]) -> float:
    """Add the gradient of −Σ log p / T over the T learnt tokens of ``texts``; return that loss.
    Raises TrainingError when it is not finite."""
    tokens = sum(text.tokens for text in texts)
    return learner.accumulate_apart(
        [text.prompt for text in texts],
        [text.rest for text in texts],
        lambda out: -out.scores.logprobs.sum() / tokens,
        wanted=[text.learnt for text in texts],
    )


@dataclass(slots=True)
class Sft(Course):
    """The steps of a run over its texts."""

    config: SftConfig
    texts: Sequence[Text]
    pupil: Learner
    watcher: Monitor

    @property
    def learner(self) -> Learner:
        return self.pupil

    @property
    def monitor(self) -> Monitor:
        return self.watcher

    @property
    def order(self) -> TextOrder:
        return TextOrder(len(self.texts), self.config.sft.shuffle, self.config.lora.seed)

    @property
    def planned(self) -> int:
        return self.config.training.epochs * self.order.steps

    @property
    def verbose(self) -> bool:
        return self.config.run.verbose

    def own_state(self) -> State:
        return {}

    def load_own_state(self, state: State) -> None:
        pass

    def update(self, update: int) -> None:
        watch = Stopwatch()
        texts = [self.texts[i] for i in self.order.of(update)]
        rate = self._learning_rate(update)
        with watch("train"), self.learner.counting():
            loss = accumulate(self.learner, texts)
            self._whole = False
            norm = self.learner.step(rate)
        self.monitor.progress("train", 1, 1)
        tokens = sum(text.tokens for text in texts)
        values = {
            "sft/loss": loss,
            "sft/tokens": float(tokens),
            "sft/texts": float(len(texts)),
            "sft/epoch": update / self.order.steps,
            "optimizer/learning_rate": rate,
            "optimizer/grad_norm": norm,
            "optimizer/step": float(self.learner.steps),
            "throughput/train_tokens_per_second": tokens / max(watch.seconds["train"], 1e-9),
        }
        values |= metrics.packing_metrics(self.learner.counts)
        values |= metrics.system_metrics(self._process)
        self._tell(update, "trained", values | watch.metrics())
        self.completed = update
        self.trained += 1
        self._whole = True

    def _learning_rate(self, update: int) -> float:
        training = self.config.training
        return training.lr * learning_rate_factor(
            update - 1, self.planned, training.warmup_steps, training.lr_scheduler
        )
