"""Which metrics the terminal shows of a run, in what order, and how each is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app import text
from trainer.monitor import RunInfo

UPDATE_SECONDS = "timing/update_seconds"

Shown = Callable[[str, Mapping[str, Any]], bool]
"""Whether a run has a metric, from its algorithm and that algorithm's own keys."""


def _always(algorithm: str, keys: Mapping[str, Any]) -> bool:  # noqa: ARG001
    return True


def _is_sampled(algorithm: str, keys: Mapping[str, Any]) -> bool:  # noqa: ARG001
    return algorithm != "sft"


def _has_texts(algorithm: str, keys: Mapping[str, Any]) -> bool:  # noqa: ARG001
    return algorithm == "sft"


def _has_groups(algorithm: str, keys: Mapping[str, Any]) -> bool:  # noqa: ARG001
    return algorithm == "grpo"


def _has_critic(algorithm: str, keys: Mapping[str, Any]) -> bool:
    return algorithm == "ppo" and bool((keys.get("critic") or {}).get("enabled"))


def _has_anchor(algorithm: str, keys: Mapping[str, Any]) -> bool:
    """Whether the initial policy is computed too, because a penalty pulls toward it."""
    toward_it = algorithm == "grpo" or keys.get("kl_anchor") == "reference"
    return toward_it and (keys.get("kl_coefficient") or 0.0) > 0


@dataclass(frozen=True, slots=True)
class Field:
    """``title`` heads its column on a wide terminal and names it in plain lines; ``narrow`` is the
    title where space is short; ``meaning`` is its line in the legend. A value above ``high`` or
    below ``low`` is highlighted. Of two columns that do not both fit, the one with the lower
    ``rank`` stays."""

    key: str
    title: str
    narrow: str
    width: int
    write: Callable[[float], str]
    rank: int = 0
    high: float = math.inf
    low: float = -math.inf
    meaning: str = ""
    shown: Shown = _always


_FIELDS: tuple[Field, ...] = (
    Field("reward/mean", "reward", "reward", 6, text.score, shown=_is_sampled),
    Field(
        "sft/loss",
        "loss",
        "loss",
        6,
        text.score,
        meaning="mean over the tokens that the step learns of −log p, in nats",
        shown=_has_texts,
    ),
    Field(
        "sft/epoch",
        "epoch",
        "epoch",
        5,
        text.hundredths,
        rank=1,
        meaning="how often each text has been learnt",
        shown=_has_texts,
    ),
    Field("sft/tokens", "tokens", "tok", 6, text.length, rank=3, shown=_has_texts),
    Field(
        "optimizer/learning_rate", "learning rate", "lr", 7, text.short, rank=2, shown=_has_texts
    ),
    Field(
        "batch/zero_std_group_fraction",
        "dead groups",
        "dead",
        4,
        text.percent,
        high=0.8,
        meaning="groups whose answers all scored alike: there is nothing to learn from them",
        shown=_has_groups,
    ),
    Field(
        "critic/explained_variance",
        "critic",
        "crit",
        5,
        text.hundredths,
        low=0.0,
        meaning="share of the returns' variance that the critic foresaw: 1 is all of it, and below "
        "0 it misleads",
        shown=_has_critic,
    ),
    Field("optimizer/grad_norm", "grad norm", "grad", 6, text.short, rank=2),
    Field(
        "policy/clip_fraction",
        "clipped",
        "clip",
        4,
        text.percent,
        high=0.5,
        meaning="share of tokens that the clip range holds back",
        shown=_is_sampled,
    ),
    Field(
        "policy/approx_kl",
        "KL",
        "KL",
        7,
        text.short,
        meaning="how far the policy has moved from the one that wrote the answers, as the last "
        "pass over them found it, in nats per token",
        shown=_is_sampled,
    ),
    Field(
        "policy/kl_per_answer",
        "KL/answer",
        "KL/ans",
        7,
        text.short,
        rank=4,
        high=25.0,
        meaning="how far the policy that wrote the answers is from the initial one, in nats per "
        "answer",
        shown=_has_anchor,
    ),
    Field("completions/length_mean", "length", "len", 4, text.length, rank=1, shown=_is_sampled),
    Field(
        "completions/truncation_fraction",
        "cut off",
        "cut",
        4,
        text.percent,
        rank=3,
        high=0.5,
        meaning="answers stopped by max_new_tokens",
        shown=_is_sampled,
    ),
)

_NO_LOSS = {
    "grpo": "not shown: it is about zero by construction, whether a run learns or not",
    "ppo": "not shown: advantages are whitened anew in each update, so it does not tell whether a "
    "run learns",
}


def fields_of(info: RunInfo) -> tuple[Field, ...]:
    """The fields of a run, from what it is configured to do: a number that its first update
    happens to lack has its place all the same."""
    keys = own_keys(info)
    return tuple(field for field in _FIELDS if field.shown(info.algorithm, keys))


def legend(info: RunInfo, fields: Sequence[Field]) -> list[tuple[str, str]]:
    """What the less obvious of ``fields`` mean."""
    lines = [(field.title, field.meaning) for field in fields if field.meaning]
    if info.algorithm in _NO_LOSS:
        lines.append(("loss", _NO_LOSS[info.algorithm]))
    return lines


def own_keys(info: RunInfo) -> Mapping[str, Any]:
    """The algorithm's own section of the configuration."""
    return info.params.get(info.algorithm) or {}
