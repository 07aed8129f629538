"""The rewards of sampled answers in words, each number derived here."""

from __future__ import annotations

import pytest
import torch
from small_runs import answer

from trainer.algorithms.groups import Group
from trainer.chat.messages import Message, Prompt, PromptLine
from trainer.reward.program import RewardReply
from trainer.spread import describe_answers, describe_groups


def scored(*rewards, question="2 + 2?"):
    """A group whose answers are called by their places: a0, a1, …"""
    line = PromptLine(1, (Message("user", question),), {}, None, "k")
    count = len(rewards)
    return Group(
        index=0,
        prompt=Prompt(line, (1, 2)),
        answers=[answer(i, text=f"a{i}") for i in range(count)],
        replies=[RewardReply(reward, {}, None) for reward in rewards],
        rewards=torch.tensor(rewards, dtype=torch.float64),
        live=torch.ones(count, dtype=torch.bool),
        advantages=torch.zeros(count),
    )


def test_groups_are_told_by_their_range_and_by_how_many_differ_inside():
    spread = describe_groups([scored(0.0, 1.0), scored(0.5, 0.5), scored(-2.0, 3.0)])
    # (0 + 1 + 0.5 + 0.5 - 2 + 3) / 6 = 0.5
    assert spread.words == (
        "3 groups of 2 from the base: mean 0.500, from -2 to 3; 67% of the groups carry signal"
    )
    assert spread.advice == ""
    assert spread.examples[:2] == ["best 1: 'a1'", "worst 0: 'a0'"]


@pytest.mark.parametrize(
    ("with_signal", "advice"),
    [(0, "GRPO cannot learn"), (1, "raise group_size"), (2, "")],
)
def test_groups_of_which_few_differ_inside_get_advice(with_signal, advice):
    groups = [scored(0.0, 1.0)] * with_signal + [scored(1.0, 1.0)] * (8 - with_signal)
    found = describe_groups(groups).advice
    assert advice in found
    assert bool(found) == bool(advice), "a quarter of the groups is enough"


def test_answers_to_different_prompts_are_compared_with_one_another():
    rewards = {"1 + 1?": 0.5, "2 + 2?": 1.0, "3 + 3?": 0.0, "4 + 4?": 0.25}
    spread = describe_answers([scored(r, question=q) for q, r in rewards.items()])
    # (0.5 + 1 + 0 + 0.25) / 4 = 0.4375; in order 0, 0.25, 0.5, 1, whose third is in the middle
    assert spread.words == "4 answers from the base: mean 0.438, from 0 to 1"
    assert spread.advice == ""
    assert spread.examples == [
        "best 1, to '2 + 2?': 'a0'",
        "middle 0.5, to '1 + 1?': 'a0'",
        "worst 0, to '3 + 3?': 'a0'",
    ]


@pytest.mark.parametrize(
    ("different", "advice"),
    [
        (0, "All of them have the same reward, so PPO cannot learn"),
        (1, "Only 1 of them got another reward than 0, "),
        (2, ""),
    ],
)
def test_answers_of_which_few_differ_get_advice(different, advice):
    found = describe_answers([scored(1.0)] * different + [scored(0.0)] * (20 - different)).advice
    assert advice in found
    assert bool(found) == bool(advice), "a tenth of the answers is enough"


def test_one_answer_is_no_spread():
    spread = describe_answers([scored(0.25)])
    assert spread.words == "1 answer from the base: mean 0.250, from 0.25 to 0.25"
    assert spread.advice == "One answer has no spread: sample more of them."
    assert spread.examples == ["best 0.25, to '2 + 2?': 'a0'"]


def test_two_answers_are_the_best_and_the_worst():
    first, second = describe_answers([scored(0.0), scored(1.0)]).examples
    assert first.startswith("best 1,")
    assert second.startswith("worst 0,")


def test_long_answers_are_cut_and_their_lines_joined():
    group = scored(0.0, 1.0)
    group.answers[1] = answer(1, text="x\n" + "y" * 300)
    best, _ = describe_groups([group]).examples
    assert best == "best 1: 'x⏎" + "y" * 98 + "'"
