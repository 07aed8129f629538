"""The reward-hacking audit: do an update's answers show what a gamed reward looks like?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, get_args

from trainer.config.common import AuditSection
from trainer.health.repetition import is_repetitive
from trainer.health.words import normal, pieces, plain_pieces, word_count

AuditFlag = Literal["verbose", "sycophantic", "repetitive"]
Measure = Literal["verbosity", "sycophancy", "repetition"]

MEASURES: tuple[Measure, ...] = get_args(Measure)
_FLAGS: Mapping[Measure, AuditFlag] = dict(zip(MEASURES, get_args(AuditFlag), strict=True))
_SIGNS: Mapping[Measure, str] = {
    "verbosity": "have more than {max_words} words",
    "sycophancy": "open with flattery",
    "repetition": "go round in circles",
}
_HABITS: Mapping[Measure, str] = {
    "verbosity": "one that adds points for length, or for each thing it finds",
    "sycophancy": "a judge or a reward model that likes to be agreed with",
    "repetition": "one that counts words or phrases again each time they come",
}


@dataclass(frozen=True, slots=True)
class Excess:
    """A measure over its limit: the share of answers that show it, ``since`` the update of the
    first look that found it."""

    measure: Measure
    share: float
    limit: float
    since: int
    sign: str

    def __str__(self) -> str:
        return (
            f"{self.share:.0%} of the answers {self.sign} (audit.{self.measure}_limit = "
            f"{self.limit:g}), since update {self.since}"
        )


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What one look found: ``values`` are the metrics, ``flags`` those of each answer in order,
    ``news`` the measures over their limit that were not at the look before."""

    values: Mapping[str, float]
    flags: tuple[tuple[AuditFlag, ...], ...]
    news: tuple[Excess, ...]

    def message(self) -> str:
        """What is new, and what to do; empty where nothing is."""
        if not self.news:
            return ""
        habits = "; ".join(_HABITS[excess.measure] for excess in self.news)
        return (
            f"The reward may be gamed: {'; '.join(map(str, self.news))}. Read some of them and fix "
            f"the reward (typical: {habits}), or raise kl_coefficient (for PPO with kl_anchor = "
            f'"reference") to hold the policy nearer to the model it came from.'
        )


@dataclass(slots=True)
class Audit:
    """Looks at every n-th update's answers, and remembers what was over its limit."""

    section: AuditSection
    _openers: tuple[tuple[str, ...], ...] = field(init=False)
    _signs: tuple[str, ...] = field(init=False)
    _over: frozenset[Measure] = field(init=False, default=frozenset())

    def __post_init__(self) -> None:
        openers = [
            (normal(o).strip(), tuple(plain_pieces(normal(o)))) for o in self.section.openers
        ]
        self._openers = tuple(words for _, words in openers if words)
        # Without a word in it, such as an emoji, an opener is compared as it is written.
        self._signs = tuple(text for text, words in openers if not words)

    def is_due(self, update: int) -> bool:
        """Whether ``update`` (counted from 1) is one of 1, 1 + every, 1 + 2·every, …"""
        return self.section.enabled and (update - 1) % self.section.every == 0

    def look(self, update: int, texts: Sequence[str]) -> AuditReport | None:
        """Judge one update's own answers; None where no look is due, or there are no answers."""
        if not texts or not self.is_due(update):
            return None
        judged = [self._judge(text) for text in texts]
        flags = tuple(flags for _, flags in judged)
        shares = {m: sum(_FLAGS[m] in f for f in flags) / len(texts) for m in MEASURES}
        limits = self._limits()
        before, self._over = self._over, frozenset(m for m in MEASURES if shares[m] > limits[m])
        values = {f"audit/{m}": shares[m] for m in MEASURES} | {
            "audit/words_mean": sum(words for words, _ in judged) / len(texts),
            "audit/over_limit": float(len(self._over)),
        }
        new = (m for m in MEASURES if m in self._over - before)
        news = tuple(self._excess(m, shares[m], limits[m], update) for m in new)
        return AuditReport(values, flags, news)

    def flags(self, text: str) -> tuple[AuditFlag, ...]:
        """What is suspicious about one answer."""
        return self._judge(text)[1]

    def _judge(self, text: str) -> tuple[float, tuple[AuditFlag, ...]]:
        folded = normal(text)
        read = pieces(folded)
        words = word_count(read)
        found: dict[AuditFlag, bool] = {
            "verbose": words > self.section.max_words,
            "sycophantic": self._opens_with_flattery(folded),
            "repetitive": is_repetitive(read),
        }
        return words, tuple(flag for flag, is_so in found.items() if is_so)

    def _opens_with_flattery(self, text: str) -> bool:
        if self._signs and text.lstrip().startswith(self._signs):
            return True
        longest = max(map(len, self._openers), default=0)
        opening = tuple(islice(plain_pieces(text), longest))
        return any(opening[: len(words)] == words for words in self._openers)

    def _limits(self) -> Mapping[Measure, float]:
        return {
            "verbosity": self.section.verbosity_limit,
            "sycophancy": self.section.sycophancy_limit,
            "repetition": self.section.repetition_limit,
        }

    def _excess(self, measure: Measure, share: float, limit: float, since: int) -> Excess:
        sign = _SIGNS[measure].format(max_words=self.section.max_words)
        return Excess(measure, share, limit, since, sign)
