"""Proof that llama.cpp and torch compute the same function under an adapter."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from trainer.errors import TrainingError
from trainer.export import write
from trainer.model.adapter import Adapter
from trainer.model.decoder import Decoder
from trainer.rollout.engine import RolloutEngine
from trainer.rollout.weights import WeightsKind

_FLOORS: dict[WeightsKind, float] = {"f32": 0.005, "f16": 0.02, "file": 0.2}
_SHARE = 0.5
_PROBE_SIZE = 0.8
_PROBE_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Agreement:
    """Nats a position, averaged over ``tokens``' positions and, by probability, over the
    vocabulary. ``change``: what the adapter does to torch's log-probabilities. ``error``: by how
    much the change in llama.cpp differs from that. ``gap``: by how much the adapted models differ.
    """

    change: float
    error: float
    gap: float


class Bench:
    """One text on which both sides are compared, with their log-probabilities without an adapter.

    ``weights`` is what llama.cpp computes with: a quantised base multiplies with 8-bit activations,
    so two exact adapters agree less there. The limit on the error is half the change, or a floor
    that covers the rounding of a small change; an adapter that is not applied, is scaled wrongly
    or has its rows in another order is off by the whole change.
    """

    def __init__(
        self,
        tokens: Sequence[int],
        decoder: Decoder,
        engine: RolloutEngine,
        weights: WeightsKind,
    ) -> None:
        # The logits of every position are compared: a long text would cost memory and show no more.
        self._tokens = tokens[:_PROBE_TOKENS]
        self._decoder = decoder
        self._engine = engine
        self._weights = weights
        engine.swap_adapter(None)
        self._base = self._mine(None)
        self._their_base = self._theirs()

    def compare(self, adapter: Adapter, path: Path) -> Agreement:
        """Load ``path``, a file of ``adapter``, in llama.cpp, where it stays in use.

        Raises TrainingError when llama.cpp does not compute what torch does.
        """
        self._engine.swap_adapter(path)
        mine, theirs = self._mine(adapter), self._theirs()
        change = _mean(mine - self._base, mine)
        error = _mean((mine - self._base) - (theirs - self._their_base), mine)
        limit = max(_FLOORS[self._weights], _SHARE * change)
        if not error <= limit:
            raise TrainingError(
                f"{path}: loaded in llama.cpp, this adapter does not compute what torch computes "
                f"with it: it changes log-probabilities by {change:.3g} nats, and the two sides "
                f"differ in that by {error:.3g} (at most {limit:.3g} on {self._weights} weights). "
                f"Either the model holds something that retrograd reads wrongly, or the installed "
                f"llama.cpp does not apply adapters; please report it."
            )
        return Agreement(change, error, _mean(mine - theirs, mine))

    def probe(self, like: Adapter) -> Agreement:
        """Compare under a random adapter of ``like``'s shape that changes the model a good deal;
        afterwards llama.cpp has no adapter. Raises TrainingError as `compare` does."""
        # Divided so that the change is as large, whatever rank and alpha are.
        random = like.random(_PROBE_SIZE / (like.scale * like.rank**0.5))
        with tempfile.TemporaryDirectory(prefix="retrograd-") as folder:
            path = Path(folder) / "probe.gguf"
            write(path, random, dtype="f32")
            result = self.compare(random, path)
        self._engine.swap_adapter(None)
        return result

    def _mine(self, adapter: Adapter | None) -> Tensor:
        return self._decoder.logits(self._tokens, adapter).cpu().log_softmax(-1)

    def _theirs(self) -> Tensor:
        return torch.from_numpy(self._engine.logits(self._tokens)).log_softmax(-1)


def _mean(difference: Tensor, weights: Tensor) -> float:
    """Each token counts by its probability, or those that nobody draws would drown the rest."""
    return float((weights.exp() * difference.abs()).sum(-1).mean())
