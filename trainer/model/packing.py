"""Packing several answers into one pass, where they share what their prompts begin with.

Notation: a pack holds a prefix of P tokens and K answers; answer k has n_k tokens. Answers to one
prompt share all of it. The last token of an answer is predicted, never read, so an answer to the
prefix contributes n_k − 1 input rows, and one whose prompt goes on after the prefix that many more.
T rows are computed, and N = Σ n_k of the states predict an answer token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainer.prefix import shared_prefix

Ids = npt.NDArray[np.int32]
Marks = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Suffixes:
    """How the answers' input rows lie in a padded (K', L) block, K' the answers with such rows.

    ``padded`` (K'·L,) picks for each place of the block a row counted from the end of the prompt
    (padding repeats row 0, and what is computed there is never read). ``flat`` (T − P,) picks the
    rows back out of the block.
    """

    count: int
    longest: int
    padded: Tensor
    flat: Tensor


@dataclass(frozen=True, slots=True)
class Pack:
    """One pass: the prefix once, then each answer's rows.

    ``tokens`` (T,) and ``positions`` (T,) are the inputs: every answer continues at position P.
    ``states`` (N,) picks the row whose output predicts each answer token, ``targets`` (N,) are
    those tokens, answer after answer, and ``lengths`` (K,) cuts the N results into answers.
    ``suffixes`` is None when no answer has input rows.
    """

    tokens: Tensor
    positions: Tensor
    prefix: int
    suffixes: Suffixes | None
    states: Tensor
    targets: Tensor
    lengths: tuple[int, ...]

    @property
    def rows(self) -> int:
        """The input rows T."""
        return self.tokens.numel()

    @property
    def longest(self) -> int:
        """The positions that the prompt with its longest answer takes, that answer's last token
        left out: it is predicted and never read."""
        return self.prefix + (self.suffixes.longest if self.suffixes else 0)


def packed_rows(prompt: int, lengths: Sequence[int]) -> int:
    """The input rows T of a pack of ``lengths`` answers on a prompt of ``prompt`` tokens."""
    return prompt + sum(n - 1 for n in lengths)


def pack(prompt: Sequence[int], answers: Sequence[Ids], device: torch.device) -> Pack:
    """Lay out one pass of answers to one prompt. Both have at least one token each."""
    return pack_apart([prompt] * len(answers), answers, device)


def pack_apart(
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Ids],
    device: torch.device,
    wanted: Sequence[Marks] | None = None,
) -> Pack:
    """Lay out one pass of answers (K), each to its own of ``prompts`` (K).

    What the prompts begin with alike is the pack's prefix; the rest of a prompt is read as the
    beginning of its answer's rows. Every answer has at least one token, and so has every prompt.
    With ``wanted`` (K of (n_k,)) only those answer tokens are predicted that are marked; the others
    are read, and the pack's N and ``lengths`` do not count them.
    """
    if not answers or not all(map(len, prompts)) or not all(map(len, answers)):
        raise ValueError("the prompt and every answer must have at least one token")
    prefix = shared_prefix(prompts)
    rests = [np.asarray(p[prefix:], np.int64) for p in prompts]
    rows = [len(r) + len(a) - 1 for r, a in zip(rests, answers, strict=True)]
    starts = prefix + np.cumsum([0, *rows])[:-1]
    states = []
    for start, rest, answer in zip(starts, rests, answers, strict=True):
        at = start + len(rest) - 1 + np.arange(len(answer))
        # The row before the first answer token is the prefix's last one where no prompt is left.
        at[0] = at[0] if len(rest) else prefix - 1
        states.append(at)
    targets = list(answers)
    if wanted is not None:
        states = [at[marks] for at, marks in zip(states, wanted, strict=True)]
        targets = [a[marks] for a, marks in zip(answers, wanted, strict=True)]

    def tensor(parts: Sequence[npt.NDArray[np.integer]]) -> Tensor:
        return torch.from_numpy(np.concatenate(parts).astype(np.int64)).to(device)

    own = [np.concatenate([r, a[:-1]]) for r, a in zip(rests, answers, strict=True)]
    return Pack(
        tokens=tensor([np.asarray(prompts[0][:prefix], np.int64), *own]),
        positions=tensor([np.arange(prefix), *(prefix + np.arange(n) for n in rows)]),
        prefix=prefix,
        suffixes=_suffixes([n for n in rows if n], device),
        states=tensor(states),
        targets=tensor(targets),
        lengths=tuple(map(len, targets)),
    )


def pack_text(tokens: Sequence[int], device: torch.device) -> Pack:
    """A pass over one text whose every state is wanted; there are no targets."""
    ids = torch.as_tensor(list(tokens), dtype=torch.long, device=device)
    every = torch.arange(len(tokens), device=device)
    nothing = torch.empty(0, dtype=torch.long, device=device)
    return Pack(ids, every, len(tokens), None, every, nothing, ())


def _suffixes(lengths: Sequence[int], device: torch.device) -> Suffixes | None:
    if not lengths:
        return None
    longest = max(lengths)
    padded = np.zeros((len(lengths), longest), np.int64)
    flat = []
    start = 0
    for k, n in enumerate(lengths):
        padded[k, :n] = start + np.arange(n)
        flat.append(k * longest + np.arange(n))
        start += n
    return Suffixes(
        count=len(lengths),
        longest=longest,
        padded=torch.from_numpy(padded.ravel()).to(device),
        flat=torch.from_numpy(np.concatenate(flat)).to(device),
    )
