"""Two policies on the same questions: their figures side by side, and what changed most."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from trainer.algorithms.paired import Change, mean_of, paired
from trainer.chat.messages import Message
from trainer.chat.texts import Text
from trainer.monitor.protocol import GroupRecord, Trajectory

_OFTEN = 0.1


@dataclass(frozen=True, slots=True)
class Pair:
    """One question and what two policies made of it. ``before`` and ``after`` are mean rewards of
    the answers, or in SFT the loss of the text, in nats a token. ``answers`` are those of the one
    and of the other policy, drawn with the same seeds in the same order; of a text there are none.
    """

    line: int
    content: str | tuple[Message, ...]
    before: float
    after: float
    answers: tuple[Sequence[Trajectory], Sequence[Trajectory]] = ((), ())
    lower_is_better: bool = False

    @property
    def gain(self) -> float:
        """By how much the second policy is better; negative where it is worse."""
        difference = self.after - self.before
        return -difference if self.lower_is_better else difference

    def plainest(self) -> tuple[Trajectory, Trajectory] | None:
        """The answers of one seed that show the gain or loss best; None where there are none."""
        sign = 1 if self.gain >= 0 else -1
        pairs = list(zip(*self.answers, strict=True))
        return max(pairs, key=lambda p: sign * (p[1].reward - p[0].reward), default=None)


@dataclass(frozen=True, slots=True)
class Comparison:
    """``main`` is the change of what policies are judged by; ``others`` are changes of what is
    worth a look beside it, by name. ``best_reward`` is the highest that was seen, where ``others``
    has the share of answers that got it."""

    pairs: Sequence[Pair]
    main: Change
    others: Mapping[str, Change]
    best_reward: float | None = None
    lower_is_better: bool = False

    def most_changed(self, count: int) -> tuple[list[Pair], list[Pair]]:
        """The ``count`` pairs with the largest gains and those with the largest losses, each
        largest first; of equal ones those that come first in the file."""
        gains = sorted((p for p in self.pairs if p.gain > 0), key=lambda p: -p.gain)
        losses = sorted((p for p in self.pairs if p.gain < 0), key=lambda p: p.gain)
        return gains[:count], losses[:count]


def compare_answers(before: Sequence[GroupRecord], after: Sequence[GroupRecord]) -> Comparison:
    """Of two policies' scored answers to the same prompts. Beside the reward: each part of it that
    every answer has (``part/<name>``); the share of answers with the highest reward that was seen
    (``best``), where on one side a tenth of them or more have it; the share that was cut
    (``truncated``); and the length in tokens (``tokens``).

    More of the reward is better, and more of its highest. Of the rest that is not known: a part may
    be a penalty, and a longer or a cut answer may be what was wished for."""

    def change(figure: Callable[[Trajectory], float], lower_is_better: bool | None) -> Change:
        one, other = ([_mean(g, figure) for g in side] for side in (before, after))
        return paired(one, other, lower_is_better=lower_is_better)

    sides = [[t for g in side for t in g.trajectories] for side in (before, after)]
    everything = [t for side in sides for t in side]
    others = {f"part/{name}": change(_part(name), None) for name in _parts(everything)}
    best = max(t.reward for t in everything)
    if often := any(_share(side, best) >= _OFTEN for side in sides):
        others["best"] = change(lambda t: float(t.reward == best), False)
    others["truncated"] = change(lambda t: float(t.answer.truncated), None)
    others["tokens"] = change(lambda t: float(len(t.answer.tokens)), None)
    pairs = [
        Pair(
            line=one.prompt.line,
            content=one.prompt.messages,
            before=_mean(one, _reward),
            after=_mean(other, _reward),
            answers=(one.trajectories, other.trajectories),
        )
        for one, other in zip(before, after, strict=True)
    ]
    return Comparison(pairs, change(_reward, False), others, best if often else None)


def compare_losses(
    texts: Sequence[Text],
    contents: Sequence[str | tuple[Message, ...]],
    before: Sequence[float],
    after: Sequence[float],
) -> Comparison:
    """Of two policies' losses of the same ``texts``, each the sum over a text's learnt tokens. A
    text counts by its mean over these tokens, however long it is. ``loss per token`` is what
    evaluations show, the mean over the tokens of all texts; a longer text weighs more in it, so it
    has no interval here."""
    pairs = [
        Pair(text.line, content, one / text.tokens, other / text.tokens, lower_is_better=True)
        for text, content, one, other in zip(texts, contents, before, after, strict=True)
    ]
    main = paired([p.before for p in pairs], [p.after for p in pairs], lower_is_better=True)
    share = len(texts) / sum(text.tokens for text in texts)
    one, other = ([loss * share for loss in side] for side in (before, after))
    pooled = paired(one, other, lower_is_better=True)
    pooled = replace(pooled, standard_error=None, low=None, high=None)
    return Comparison(pairs, main, {"loss per token": pooled}, lower_is_better=True)


def _reward(trajectory: Trajectory) -> float:
    return trajectory.reward


def _part(name: str) -> Callable[[Trajectory], float]:
    return lambda trajectory: trajectory.parts[name]


def _mean(group: GroupRecord, figure: Callable[[Trajectory], float]) -> float:
    return mean_of([figure(t) for t in group.trajectories])


def _share(trajectories: Sequence[Trajectory], reward: float) -> float:
    return mean_of([float(t.reward == reward) for t in trajectories])


def _parts(trajectories: Sequence[Trajectory]) -> list[str]:
    """The parts that all have, in the order of the first; not those that are the reward itself."""
    return [
        name
        for name in trajectories[0].parts
        if all(name in t.parts for t in trajectories)
        and any(t.parts[name] != t.reward for t in trajectories)
    ]
