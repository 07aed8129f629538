"""The loss of held-out texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.algorithms.evaluation import Measured
from trainer.algorithms.stopwatch import Stopwatch
from trainer.chat.texts import Text
from trainer.config.sft import TEXTS_PER_STEP
from trainer.model.adapter import Adapter
from trainer.model.learner import Learner
from trainer.monitor.protocol import Monitor
from trainer.rollout.continuous import RolloutStopped


@dataclass(frozen=True, slots=True)
class HeldOutLoss:
    """Mean over all tokens of the held-out texts that would be learnt, in nats a token."""

    texts: Sequence[Text]
    learner: Learner
    monitor: Monitor

    @property
    def lower_is_better(self) -> bool:
        return True

    def measure(self) -> Measured:
        watch = Stopwatch()
        tokens = sum(text.tokens for text in self.texts)
        with watch("score"):
            losses = self.losses(self.learner.adapter)
        values = {
            "eval/loss": sum(losses) / tokens,
            "eval/tokens": float(tokens),
            "eval/texts": float(len(self.texts)),
        }
        return Measured(values["eval/loss"], (), values | watch.metrics())

    def losses(self, adapter: Adapter | None) -> list[float]:
        """Of each text the sum over its learnt tokens, in nats, under ``adapter`` (None: the base).
        Raises RolloutStopped."""
        losses: list[float] = []
        for start in range(0, len(self.texts), TEXTS_PER_STEP):
            if self.monitor.should_stop():
                raise RolloutStopped
            part = self.texts[start : start + TEXTS_PER_STEP]
            scored = self.learner.score_apart(
                [text.prompt for text in part],
                [text.rest for text in part],
                adapter,
                wanted=[text.learnt for text in part],
            )
            losses += [float(-one.logprobs.sum()) for one in scored]
            self.monitor.progress("evaluate", len(losses), len(self.texts))
        return losses
