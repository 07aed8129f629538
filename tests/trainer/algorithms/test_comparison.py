"""Two policies side by side, each number derived here."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from small_runs import answer

from trainer.algorithms.comparison import compare_answers, compare_losses
from trainer.chat.messages import Message, PromptLine
from trainer.chat.texts import Text
from trainer.monitor.protocol import GroupRecord, Trajectory


def group(number, *rewards, tokens=3, finished=True, parts=None):
    """Answers called by prompt and place: 0.0, 0.1, …"""
    trajectories = [
        Trajectory(
            member=m,
            answer=answer(*range(tokens), finished=finished, text=f"{number}.{m}"),
            reward=reward,
            reward_raw=reward,
            judge_term=0.0,
            parts=(parts or {})[m] if parts else {},
            advantage=0.0,
            trained=False,
            skip_reason="evaluation",
        )
        for m, reward in enumerate(rewards)
    ]
    line = PromptLine(number + 1, (Message("user", f"q{number}"),), {}, None, f"k{number}")
    return GroupRecord(number, line, trajectories)


def test_the_unit_is_the_prompt_with_the_mean_of_its_answers():
    """Means 0.5, 0, 1 and 1, 0, 0.5: differences 0.5, 0, -0.5."""
    before = [group(0, 0.0, 1.0), group(1, 0.0, 0.0), group(2, 1.0, 1.0)]
    after = [group(0, 1.0, 1.0), group(1, 0.0, 0.0), group(2, 0.0, 1.0)]
    comparison = compare_answers(before, after)
    main = comparison.main
    assert (main.count, main.before, main.after, main.difference) == (3, 0.5, 0.5, 0.0)
    assert (main.better, main.worse, main.equal) == (1, 1, 1)
    assert main.standard_error == pytest.approx(0.5 / 3**0.5)
    assert [(p.line, p.before, p.after, p.gain) for p in comparison.pairs] == [
        (1, 0.5, 1.0, 0.5),
        (2, 0.0, 0.0, 0.0),
        (3, 1.0, 0.5, -0.5),
    ]
    assert not comparison.lower_is_better


def test_the_same_answers_in_another_order_are_no_change():
    one, other = (0.1, 0.7, 0.3), (0.3, 0.1, 0.7)
    main = compare_answers([group(0, *one)], [group(0, *other)]).main
    assert (main.difference, main.equal) == (0.0, 1)


def test_length_and_cut_answers_are_told_so_that_a_gain_by_length_is_seen():
    before = [group(0, 0.0, tokens=8, finished=False), group(1, 0.0, tokens=4)]
    after = [group(0, 1.0, tokens=2), group(1, 0.5, tokens=2)]
    others = compare_answers(before, after).others
    assert (others["tokens"].before, others["tokens"].after) == (6.0, 2.0)
    assert (others["truncated"].before, others["truncated"].after) == (0.5, 0.0)
    assert others["tokens"].difference == -4.0
    for name in ("tokens", "truncated"):
        assert (others[name].better, others[name].worse, others[name].sign_p) == (None, None, None)
        assert others[name].equal == (0 if name == "tokens" else 1), "that is no judgement"


@pytest.mark.parametrize(
    ("rewards", "told"), [([1.0] + [0.5] * 9, True), ([1.0] + [0.5] * 10, False)]
)
def test_the_highest_reward_is_told_where_a_tenth_of_one_sides_answers_have_it(rewards, told):
    before = [group(i, 0.0) for i in range(len(rewards))]
    after = [group(i, reward) for i, reward in enumerate(rewards)]
    comparison = compare_answers(before, after)
    assert comparison.best_reward == (1.0 if told else None)
    assert ("best" in comparison.others) is told
    if told:
        assert (comparison.others["best"].before, comparison.others["best"].after) == (0.0, 0.1)


def test_parts_are_told_that_all_answers_have_and_that_are_not_the_reward_itself():
    """`right` is missing once, and `all` is what the reward is."""
    before = [
        group(
            0, 1.0, 2.0, parts=[{"form": 0.5, "right": 1.0, "all": 1.0}, {"form": 1.5, "all": 2.0}]
        )
    ]
    after = [
        group(
            0,
            3.0,
            4.0,
            parts=[
                {"form": 2.0, "right": 1.0, "all": 3.0},
                {"form": 3.0, "right": 0.0, "all": 4.0},
            ],
        )
    ]
    others = compare_answers(before, after).others
    assert [name for name in others if name.startswith("part/")] == ["part/form"]
    assert (others["part/form"].before, others["part/form"].after) == (1.0, 2.5)


def test_what_changed_most_is_ordered_by_gain_and_equal_ones_by_their_lines():
    before = [group(i, 0.5) for i in range(6)]
    after = [group(i, r) for i, r in enumerate((0.75, 1.0, 0.5, 0.25, 0.0, 0.75))]
    gains, losses = compare_answers(before, after).most_changed(2)
    assert [p.line for p in gains] == [2, 1]
    assert [p.line for p in losses] == [5, 4]
    gains, losses = compare_answers(before, after).most_changed(10)
    assert [p.line for p in gains] == [2, 1, 6]
    assert [p.line for p in losses] == [5, 4], "what did not change is neither"


@pytest.mark.parametrize(
    ("after", "member"),
    [
        ((0.5, 1.0, 0.0), 1),  # a gain, in which member 1 rises by 0.75
        ((0.25, 0.0, 0.0), 2),  # a loss, in which member 2 falls by 0.5
        ((0.0, 0.5, 0.5), 0),  # a loss that is member 0's alone
    ],
)
def test_the_answers_that_are_shown_are_those_of_one_seed_that_changed_most(after, member):
    [pair] = compare_answers([group(0, 0.5, 0.25, 0.5)], [group(0, *after)]).pairs
    one, other = pair.plainest()
    assert (one.answer.text, other.answer.text) == (f"0.{member}", f"0.{member}")
    assert (one.reward, other.reward) == ((0.5, 0.25, 0.5)[member], after[member])


def text(line, tokens):
    return Text(line, (1, 2), np.zeros(tokens, np.int32), np.ones(tokens, np.bool_))


def test_of_losses_a_lower_one_is_better_and_each_text_counts_alike():
    """Texts of 1 and 3 tokens: means 2 and 1 before, 1 and 1.5 after. Over all tokens it is 5 / 4
    and 5.5 / 4, what an evaluation shows."""
    texts = [text(4, 1), text(9, 3)]
    comparison = compare_losses(texts, ["a", "b"], [2.0, 3.0], [1.0, 4.5])
    main, pooled = comparison.main, comparison.others["loss per token"]
    assert (main.before, main.after, main.difference) == (1.5, 1.25, -0.25)
    assert (main.better, main.worse) == (1, 1)
    assert (pooled.before, pooled.after, pooled.low) == (1.25, 1.375, None)
    assert compare_losses(texts, "ab", [2.0, 3.0], [1.0, 2.0]).others["loss per token"].better == 2
    gains, losses = comparison.most_changed(3)
    assert [(p.line, p.content) for p in gains] == [(4, "a")]
    assert [(p.line, p.gain) for p in losses] == [(9, -0.5)]
    assert gains[0].plainest() is None
    assert dataclasses.replace(gains[0], lower_is_better=False).gain == -1.0
