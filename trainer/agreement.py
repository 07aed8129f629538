"""Whether llama.cpp and torch compute the same function, without and with an adapter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer.errors import TrainingError
from trainer.export import load_into
from trainer.model.adapter import Adapter
from trainer.model.decoder import Decoder
from trainer.rollout.engine import RolloutEngine
from trainer.rollout.nats import (
    GAP_LIMITS,
    LogProbs,
    change_limit,
    log_softmax,
    logprobs,
    mean_nats,
    merge_limit,
)
from trainer.rollout.weights import WeightsKind

_NO_CHANGE = 1e-6
_PROBE_SIZE = 0.8
PROBE_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Agreement:
    """Nats a position, averaged over the text's positions and, by probability, over the
    vocabulary. ``change``: what the adapter does to torch's log-probabilities. ``error``: by how
    much the change in llama.cpp differs from that. ``gap``: by how much the adapted models differ.
    """

    change: float
    error: float
    gap: float


class Parity:
    """One text on which both sides are compared.

    ``weights`` is what llama.cpp computes with. A copy of the dequantised weights is held to a
    small gap; a quantised base multiplies with 8-bit activations, which alone is worth about 0.06
    nats, so there only gross faults can be told.
    """

    def __init__(
        self,
        tokens: Sequence[int],
        decoder: Decoder,
        engine: RolloutEngine,
        weights: WeightsKind,
    ) -> None:
        # The logits of every position are compared: a long text would cost memory and show no more.
        self._tokens = tokens[:PROBE_TOKENS]
        self._decoder = decoder
        self._engine = engine
        self._weights = weights

    def check_base(self) -> float:
        """The gap between the two sides without an adapter, in nats. Raises TrainingError when it
        is larger than rounding explains: then the file holds something that torch reads wrongly.
        """
        self._engine.swap_adapter(None)
        mine, theirs = self._mine(None), self._theirs()
        if not np.isfinite(mine).all():
            raise TrainingError(
                "the base model's log-probabilities are not finite: the model file holds numbers "
                "that are not, or are absurdly large. Get the file again."
            )
        gap, limit = mean_nats(mine - theirs, mine), GAP_LIMITS[self._weights]
        if not gap <= limit:
            raise TrainingError(
                f"llama.cpp and torch disagree on the base model: log-probabilities differ by "
                f"{gap:.3g} nats on average, and on {self._weights} weights at most {limit} is "
                f"rounding. The model file holds something that retrograd reads wrongly; please "
                f"report it with the output of `retrograd inspect`."
            )
        return gap

    def compare(self, adapter: Adapter, path: Path) -> Agreement:
        """Load ``path``, a file of ``adapter``, in llama.cpp, where it stays in use.

        Raises TrainingError when the change that the file makes in llama.cpp is off by more than
        half of the change that the adapter makes in torch (or a floor that covers the rounding of a
        small change). An adapter that is not applied, is scaled wrongly or has its rows in another
        order is off by all of it.
        """
        self._engine.swap_adapter(None)
        mine_before, theirs_before = self._mine(None), self._theirs()
        self._engine.swap_adapter(path)
        mine, theirs = self._mine(adapter), self._theirs()
        if not (np.isfinite(mine).all() and np.isfinite(theirs).all()):
            raise TrainingError(
                f"{path.name}: with this adapter log-probabilities are not finite: training has "
                f"diverged. Lower training.lr."
            )
        change = mean_nats(mine - mine_before, mine)
        error = mean_nats((mine - mine_before) - (theirs - theirs_before), mine)
        limit = change_limit(change, self._weights)
        if not error <= limit:
            raise TrainingError(
                f"{path}: loaded in llama.cpp, this adapter does not compute what torch computes "
                f"with it: it changes log-probabilities by {change:.3g} nats, and the two sides "
                f"differ in that by {error:.3g} (at most {limit:.3g} on {self._weights} weights). "
                f"The installed llama.cpp does not apply adapters as it should; please report it."
            )
        return Agreement(change, error, mean_nats(mine - theirs, mine))

    def compare_merged(self, adapter: Adapter, merged: RolloutEngine) -> Agreement:
        """Compare ``merged``, the model with ``adapter`` in F16 weights, with torch's two parts.

        Raises TrainingError when they differ by more than rounding explains, or by more than half
        of what the adapter changes.
        """
        mine, theirs = self._mine(adapter), logprobs(merged, self._tokens)
        change = mean_nats(mine - self._mine(None), mine)
        gap, limit = mean_nats(mine - theirs, mine), merge_limit(change, "f16")
        if not gap <= limit:
            raise TrainingError(
                f"loaded in llama.cpp, the merged model does not compute what torch computes with "
                f"base and adapter: log-probabilities differ by {gap:.3g} nats on average (at most "
                f"{limit:.3g} is rounding, where the adapter changes them by {change:.3g}). Please "
                f"report it."
            )
        return Agreement(change, gap, gap)

    def probe(self, like: Adapter) -> Agreement:
        """Compare the base, then a random adapter of ``like``'s shape that changes the model a good
        deal; afterwards llama.cpp has no adapter. Raises TrainingError as the two checks do."""
        self.check_base()
        # Divided so that the change is as large, whatever rank and alpha are.
        random = like.random(_PROBE_SIZE / (like.scale * like.rank**0.5))
        with load_into(self._engine, random) as path:
            result = self.compare(random, path)
        self._engine.swap_adapter(None)
        if not result.change > _NO_CHANGE:
            raise TrainingError(
                "a random adapter changes nothing in this model, so nothing can be trained: its "
                "weights are all zero, or the targets have no effect."
            )
        return result

    def _mine(self, adapter: Adapter | None) -> LogProbs:
        return log_softmax(self._decoder.logits(self._tokens, adapter).cpu().numpy())

    def _theirs(self) -> LogProbs:
        return logprobs(self._engine, self._tokens)
