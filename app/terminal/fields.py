"""Which metrics the terminal shows, in what order, and how each is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app import text

LEGEND = (
    ("dead groups", "groups whose answers all scored alike: there is nothing to learn from them"),
    ("clipped", "share of tokens that the clip range holds back"),
    (
        "KL",
        "how far the last pass met the policy from the one that wrote the answers: k3, in nats per "
        "token",
    ),
    ("cut off", "answers stopped by max_new_tokens"),
    ("loss", "not shown: it is about zero by construction, whether a run learns or not"),
)


@dataclass(frozen=True, slots=True)
class Field:
    """``title`` heads its column on a wide terminal and names it in plain lines; ``narrow`` is the
    title where space is short. A value above ``alarm`` is highlighted. Of two columns that do not
    both fit, the one with the lower ``rank`` stays."""

    key: str
    title: str
    narrow: str
    width: int
    write: Callable[[float], str]
    rank: int = 0
    alarm: float | None = None


FIELDS: tuple[Field, ...] = (
    Field("reward/mean", "reward", "reward", 6, text.score),
    Field("batch/zero_std_group_fraction", "dead groups", "dead", 4, text.percent, alarm=0.8),
    Field("optimizer/grad_norm", "grad norm", "grad", 6, text.short, rank=2),
    Field("policy/clip_fraction", "clipped", "clip", 4, text.percent, alarm=0.5),
    Field("policy/approx_kl", "KL", "KL", 7, text.short),
    Field("policy/kl_per_answer", "KL/answer", "KL/ans", 7, text.short, rank=4, alarm=25.0),
    Field("completions/length_mean", "length", "len", 4, text.length, rank=1),
    Field("completions/truncation_fraction", "cut off", "cut", 4, text.percent, 3, alarm=0.5),
)
UPDATE_SECONDS = "timing/update_seconds"
