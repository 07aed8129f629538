"""How the rewards of sampled answers spread, and whether an algorithm can learn from that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trainer.algorithms.groups import Group

_FEW_SIGNALS = 0.25
_FEW_DIFFERENT = 0.1
_SHOWN_GROUPS = 3
_SHOWN_CHARACTERS = 100


@dataclass(frozen=True, slots=True)
class Spread:
    """``advice`` is empty where there is enough to learn from; ``examples`` are good and bad
    answers, a line each."""

    words: str
    advice: str
    examples: list[str]


def describe_groups(groups: Sequence[Group], policy: str = "the base") -> Spread:
    """For GRPO, which compares the answers of a group; ``policy`` is what gave them.
    The examples are the best and the worst of the first groups."""
    share = sum(g.trainable for g in groups) / len(groups)
    words = (
        f"{len(groups)} groups of {len(groups[0].answers)} from {policy}: {_range(groups)}; "
        f"{share:.0%} of the groups carry signal"
    )
    advice = ""
    if share == 0:
        advice = (
            "No group has two different rewards, so GRPO cannot learn from this. Give partial "
            "credit, or change the prompts."
        )
    elif share < _FEW_SIGNALS:
        advice = "Few groups can teach anything: give partial credit, or raise group_size."
    examples = []
    for group in groups[:_SHOWN_GROUPS]:
        order = torch.argsort(group.rewards, stable=True).tolist()
        for which, i in (("best", order[-1]), ("worst", order[0])):
            reward, text = float(group.rewards[i]), _short(group.answers[i].text)
            examples.append(f"{which} {reward:.3g}: {text}")
    return Spread(words, advice, examples)


def describe_answers(episodes: Sequence[Group], policy: str = "the base") -> Spread:
    """For PPO, which compares the answers of a batch, one to a prompt. The examples are the best
    of them, the worst and the one in the middle."""
    rewards = torch.cat([e.rewards for e in episodes])
    order = torch.argsort(rewards, stable=True).tolist()
    chosen = [("best", order[-1]), ("middle", order[len(order) // 2]), ("worst", order[0])]
    if len(order) < 3:
        chosen = [("best", order[-1]), ("worst", order[0])][: len(order)]
    examples = [
        f"{which} {float(rewards[i]):.3g}, to {_short(episodes[i].prompt.line.question)}: "
        f"{_short(episodes[i].answers[0].text)}"
        for which, i in chosen
    ]
    count = "1 answer" if len(order) == 1 else f"{len(order)} answers"
    words = f"{count} from {policy}: {_range(episodes)}"
    return Spread(words, _advice_for_batch(rewards), examples)


def _advice_for_batch(rewards: torch.Tensor) -> str:
    if len(rewards) == 1:
        return "One answer has no spread: sample more of them."
    [(commonest, count)] = Counter(rewards.tolist()).most_common(1)
    different = len(rewards) - count
    if different == 0:
        return (
            "All of them have the same reward, so PPO cannot learn from this. Give partial credit, "
            "or change the prompts."
        )
    if different < _FEW_DIFFERENT * len(rewards):
        return (
            f"Only {different} of them got another reward than {commonest:.3g}, and nothing else "
            f"can teach: give partial credit, or raise rollout_batch_size."
        )
    return ""


def _range(groups: Sequence[Group]) -> str:
    rewards = torch.cat([g.rewards for g in groups])
    low, high = float(rewards.min()), float(rewards.max())
    return f"mean {float(rewards.mean()):.3f}, from {low:.3g} to {high:.3g}"


def _short(text: str) -> str:
    return repr(text.replace("\n", "⏎")[:_SHOWN_CHARACTERS])
