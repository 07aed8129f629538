"""The one place where parameters change: passes forward and back, then an optimizer step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from trainer.errors import TrainingError
from trainer.model.adapter import Adapter
from trainer.model.decoder import Decoder
from trainer.model.logprobs import TokenScores, score_tokens
from trainer.model.packing import Ids, Marks, Pack, pack, pack_apart
from trainer.model.passes import Fanout, plan_apart, plan_passes
from trainer.prefix import shared_prefix


@dataclass(frozen=True, slots=True)
class PassSettings:
    """How work is cut; none of it changes a result. ``chunk`` is the most rows of logits that
    exist at a time; ``temperature`` divides the logits. With ``entropy_gradient`` a loss may hold
    the entropy, which costs a further product with the vocabulary."""

    micro_batch: int
    fanout: Fanout
    recompute: bool
    chunk: int
    temperature: float
    entropy_gradient: bool = False


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    kind: Literal["adamw", "sgd"]
    weight_decay: float
    max_grad_norm: float


class PassOutput(NamedTuple):
    """One pass as a loss sees it: its scores, (N,) each; the states (N, width) that predicted the
    tokens; which answers of the group it holds, in this order; and their lengths (K,)."""

    scores: TokenScores
    states: Tensor
    answers: tuple[int, ...]
    lengths: Tensor


class Scored(NamedTuple):
    """One answer's token log-probabilities (n,), and the states (n, width) that predicted its
    tokens where they were asked for."""

    logprobs: Tensor
    states: Tensor | None


@dataclass(slots=True)
class PassCounts:
    """What the passes of an update cost, for the packing metrics."""

    passes: int = 0
    answers: int = 0
    rows: int = 0
    unpacked_rows: int = 0
    block_rows: int = 0
    suffix_rows: int = 0

    def add(self, packed: Pack) -> None:
        suffix = packed.rows - packed.prefix
        self.passes += 1
        self.answers += len(packed.lengths)
        self.rows += packed.rows
        self.unpacked_rows += packed.prefix * len(packed.lengths) + suffix
        self.suffix_rows += suffix
        if packed.suffixes is not None:
            self.block_rows += packed.suffixes.count * packed.suffixes.longest


Loss = Callable[[PassOutput], Tensor]
Passes = Iterator[tuple[tuple[int, ...], Pack]]


class Learner:
    """A decoder, the adapter that is trained on it, and the optimizer.

    ``initial`` is the adapter of the initial policy, which penalties pull toward; None where that
    is the base alone.
    """

    def __init__(
        self,
        decoder: Decoder,
        adapter: Adapter,
        passes: PassSettings,
        optimizer: OptimizerSettings,
        *,
        on_fallback: Callable[[str], None],
        initial: Adapter | None = None,
    ) -> None:
        self.decoder = decoder
        self.adapter = adapter
        self.initial = initial
        self.settings = passes
        self.max_grad_norm = optimizer.max_grad_norm
        self.optimizer = _make_optimizer(adapter, optimizer)
        self.steps = 0
        self.counts = PassCounts()
        self._on_fallback = on_fallback
        self._gradients_checked = False

    def score(
        self, prompt: Sequence[int], answers: Sequence[Ids], adapter: Adapter | None
    ) -> list[Tensor]:
        """Each answer's token log-probabilities (n_k,) under ``adapter``; no gradient."""
        passes = self._passes(prompt, answers)
        return [s.logprobs for s in self._score_passes(passes, len(answers), adapter, None)]

    def score_apart(
        self,
        prompts: Sequence[Sequence[int]],
        answers: Sequence[Ids],
        adapter: Adapter | None,
        *,
        keep: torch.dtype | None = None,
        wanted: Sequence[Marks] | None = None,
    ) -> list[Scored]:
        """As `score`, of answers each to a prompt of its own; with their states as ``keep``. With
        ``wanted``, of those tokens alone that it marks in each answer."""
        passes = self._passes_apart(prompts, answers, wanted)
        return self._score_passes(passes, len(answers), adapter, keep)

    def _score_passes(
        self, passes: Passes, count: int, adapter: Adapter | None, keep: torch.dtype | None
    ) -> list[Scored]:
        scored = [Scored(torch.empty(0), None)] * count
        with torch.no_grad():
            for members, packed in passes:
                scores, states = self._score(packed, adapter)
                cut = list(packed.lengths)
                kept = [None] * len(cut) if keep is None else torch.split(states.to(keep), cut)
                logprobs = torch.split(scores.logprobs, cut)
                for member, own, state in zip(members, logprobs, kept, strict=True):
                    scored[member] = Scored(own, state)
        return scored

    def accumulate(self, prompt: Sequence[int], answers: Sequence[Ids], loss: Loss) -> float:
        """Add the gradient of ``loss``, summed over the passes of these answers; return the sum.

        The loss of a pass must be a sum over its tokens with a divisor that does not depend on
        the pass; then every way of cutting gives the same gradient. Raises TrainingError when a
        loss is not finite.
        """
        return self._accumulate(self._passes(prompt, answers), loss)

    def accumulate_apart(
        self,
        prompts: Sequence[Sequence[int]],
        answers: Sequence[Ids],
        loss: Loss,
        *,
        wanted: Sequence[Marks] | None = None,
    ) -> float:
        """As `accumulate`, of answers each to a prompt of its own. With ``wanted``, the loss sees
        those tokens alone that it marks in each answer."""
        return self._accumulate(self._passes_apart(prompts, answers, wanted), loss)

    def _accumulate(self, passes: Passes, loss: Loss) -> float:
        total = 0.0
        for members, packed in passes:
            self.counts.add(packed)
            lengths = torch.tensor(packed.lengths, device=self.decoder.device)
            scores, states = self._score(packed, self.adapter)
            value = loss(PassOutput(scores, states, members, lengths))
            number = float(value.detach())
            if not math.isfinite(number):
                raise TrainingError(
                    f"the loss is {number} after {self.steps} optimizer steps. Lower training.lr, "
                    f"or raise kl_coefficient where the run has one."
                )
            torch.autograd.backward(value)
            total += number
        return total

    def step(self, learning_rate: float) -> float:
        """One optimizer step on what was accumulated; the adapter's gradient norm before clipping.

        Raises TrainingError, before anything changes, when the gradient is not finite or when a
        trained tensor has none.
        """
        self._check_gradients()
        groups = self.optimizer.param_groups
        norms = [
            float(torch.nn.utils.clip_grad_norm_(group["params"], self.max_grad_norm))
            for group in groups
        ]
        if not all(map(math.isfinite, norms)):
            self.optimizer.zero_grad()
            raise TrainingError(
                f"the gradient norm is {sum(norms)} after {self.steps} optimizer steps. Lower "
                f"training.lr, or raise kl_coefficient where the run has one."
            )
        for group in groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
        return norms[0]

    def state(self) -> dict[str, Any]:
        """The optimizer's state, and how many steps it has made; the adapter has its own."""
        return {"steps": self.steps, "optimizer": self.optimizer.state_dict()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.steps = state["steps"]
        self.optimizer.load_state_dict(state["optimizer"])

    def train_too(self, parameters: Iterable[Tensor]) -> None:
        """Let the optimizer train ``parameters`` beside the adapter. Their gradient is limited by
        itself, so that a large one does not shorten the adapter's steps, and they do not decay."""
        self.optimizer.add_param_group({"params": list(parameters), "weight_decay": 0.0})

    @contextmanager
    def counting(self) -> Iterator[PassCounts]:
        """Count the training passes made inside."""
        self.counts = PassCounts()
        yield self.counts

    def _score(self, packed: Pack, adapter: Adapter | None) -> tuple[TokenScores, Tensor]:
        states = self.decoder.states(packed, adapter, recompute=self.settings.recompute)
        scores = score_tokens(
            states,
            self.decoder.head,
            packed.targets,
            temperature=self.settings.temperature,
            chunk=self.settings.chunk,
            entropy_gradient=self.settings.entropy_gradient,
            cap=self.decoder.architecture.scales.logit_cap,
        )
        return scores, states

    def _passes(self, prompt: Sequence[int], answers: Sequence[Ids]) -> Passes:
        plan = plan_passes(
            len(prompt),
            [len(a) for a in answers],
            micro_batch=self.settings.micro_batch,
            fanout=self.settings.fanout,
        )
        if plan.reason:
            self._on_fallback(plan.reason)
        for members in plan.passes:
            yield members, pack(prompt, [answers[i] for i in members], self.decoder.device)

    def _passes_apart(
        self,
        prompts: Sequence[Sequence[int]],
        answers: Sequence[Ids],
        wanted: Sequence[Marks] | None = None,
    ) -> Passes:
        if not answers:
            return
        lengths = [len(p) + len(a) for p, a in zip(prompts, answers, strict=True)]
        prefix = shared_prefix(prompts)
        for members in self._plan_apart(prefix, lengths):
            own = [prompts[i] for i in members], [answers[i] for i in members]
            marks = None if wanted is None else [wanted[i] for i in members]
            yield members, pack_apart(*own, self.decoder.device, marks)

    def _plan_apart(self, prefix: int, lengths: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        settings = self.settings
        return plan_apart(prefix, lengths, micro_batch=settings.micro_batch, fanout=settings.fanout)

    def _check_gradients(self) -> None:
        if self._gradients_checked:
            return
        without = [n for n, p in self.adapter.named_parameters() if p.grad is None]
        if without:
            raise TrainingError(
                f"{len(without)} trained tensors got no gradient, first {without[0]}; training "
                f"would leave them as they are."
            )
        self._gradients_checked = True


def _make_optimizer(adapter: Adapter, settings: OptimizerSettings) -> torch.optim.Optimizer:
    parameters = list(adapter.parameters())
    if settings.kind == "sgd":
        return torch.optim.SGD(parameters, lr=0.0, weight_decay=settings.weight_decay)
    return torch.optim.AdamW(parameters, lr=0.0, weight_decay=settings.weight_decay)
