from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from small_runs import answer, group

CUT = {"grpo.mask_truncated": True}


def whole(length):
    return answer(*range(length))


def cut(length):
    return answer(*range(length), finished=False)


def test_an_advantage_is_what_the_reward_is_above_the_groups_mean(configured):
    assert group(configured(), [0.0, 0.0, 0.0, 1.0]).advantages.tolist() == [-0.25] * 3 + [0.75]


def test_only_the_rank_inside_a_group_matters(configured):
    low, high = (group(configured(), [b, b, b, b + 1.0]).advantages for b in (0.0, 10.0))
    assert torch.equal(low, high)


def test_leave_one_out_compares_with_the_others(configured):
    config = configured({"grpo.baseline": "leave_one_out"})
    # the others of the first have mean (3 + 3 + 6) / 3 = 4, those of the last (0 + 3 + 3) / 3 = 2
    assert group(config, [0.0, 3.0, 3.0, 6.0]).advantages.tolist() == [-4.0, 0.0, 0.0, 4.0]


def test_truncated_answers_leave_before_the_mean_is_taken(configured):
    answers = [whole(2), cut(6), whole(3), whole(1)]
    made = group(configured(CUT), [1.0, 100.0, 2.0, 6.0], answers)
    assert made.advantages.tolist() == [-2.0, 0.0, -1.0, 3.0]
    assert made.members == [0, 2, 3]
    assert [len(tokens) for tokens in made.live_tokens] == [2, 3, 1]


def test_without_the_mask_truncated_answers_count(configured):
    answers = [whole(2), cut(6), whole(3), whole(1)]
    made = group(configured(), [0.0, 4.0, 0.0, 0.0], answers)
    assert made.advantages.tolist() == [-1.0, 3.0, -1.0, -1.0]


def test_the_overlong_penalty_comes_first(configured):
    """Equal rewards of the program differ after it, so the group carries signal."""
    config = configured(
        {"grpo.overlong_penalty.buffer_tokens": 2, "grpo.overlong_penalty.max_penalty": 1.0}
    )
    made = group(config, [1.0] * 4, [cut(6), whole(5), whole(4), whole(2)])
    assert made.rewards.tolist() == [0.0, 0.5, 1.0, 1.0]
    assert made.advantages.tolist() == [-0.625, -0.125, 0.375, 0.375]


def test_penalty_then_mask_then_mean(configured):
    config = configured(
        CUT | {"grpo.overlong_penalty.buffer_tokens": 2, "grpo.overlong_penalty.max_penalty": 1.0}
    )
    made = group(config, [1.0] * 4, [cut(6), whole(5), whole(4), whole(2)])
    # the cut answer's 0 is out; the mean of 0.5, 1 and 1 is 5/6
    assert made.advantages.tolist() == pytest.approx([0.0, -1 / 3, 1 / 6, 1 / 6], abs=1e-7)


@pytest.mark.parametrize("reward", [1.0, 0.1, -3.0])
def test_equal_rewards_carry_no_signal(configured, reward):
    made = group(configured(), [reward] * 4)
    assert made.advantages.tolist() == [0.0] * 4
    assert not made.trainable


def test_all_truncated_carries_no_signal(configured):
    made = group(configured(CUT), [0.0, 1.0, 2.0, 3.0], [cut(6)] * 4)
    assert (made.trainable, made.members) == (False, [])
    assert made.advantages.tolist() == [0.0] * 4


def test_a_difference_that_the_mask_takes_away_is_no_signal(configured):
    made = group(configured(CUT), [1.0, 1.0, 0.0], [whole(1), whole(2), cut(6)])
    assert not made.trainable
    assert made.advantages.tolist() == [0.0] * 3


def test_an_answer_that_ends_at_once_has_one_token_and_counts(configured):
    made = group(configured(CUT), [0.0, 1.0], [answer(258), whole(3)])
    assert made.advantages.tolist() == [-0.5, 0.5]
    assert made.live_tokens[0].tolist() == [258]


def test_ids_and_sampler_log_probabilities_are_those_that_were_drawn(configured):
    drawn = [answer(5, 9, logprobs=[-0.5, -2.0]), cut(6), answer(7, logprobs=[-1.5])]
    made = group(configured(CUT), [0.0, 5.0, 1.0], drawn)
    assert made.live_tokens[0] is drawn[0].tokens
    theirs = made.sampler_logprobs(torch.device("cpu"))
    assert [t.tolist() for t in theirs] == [[-0.5, -2.0], [-1.5]]
    assert theirs[0].dtype == torch.float32


# -- what is told about each answer --------------------------------------------------------------


def reasons(made):
    return [t.skip_reason for t in made.record([()] * len(made.answers)).trajectories]


def test_a_record_holds_what_was_decided(configured):
    config = configured(
        CUT | {"grpo.overlong_penalty.buffer_tokens": 2, "grpo.overlong_penalty.max_penalty": 1.0}
    )
    parts = [{"format": 1.0}, {}, {"format": 0.5}]
    made = group(config, [2.0, 9.0, 1.0], [whole(5), cut(6), whole(1)], index=3, parts=parts)
    record = made.record([()] * len(made.answers))
    assert (record.group, record.prompt) == (3, made.prompt.line)
    first, masked, last = record.trajectories
    assert (first.reward_raw, first.reward, first.advantage) == (2.0, 1.5, 0.25)
    assert (last.reward_raw, last.reward, last.advantage) == (1.0, 1.0, -0.25)
    assert (masked.reward_raw, masked.reward, masked.advantage) == (9.0, 8.0, 0.0)
    assert [t.parts for t in record.trajectories] == parts
    assert [t.member for t in record.trajectories] == [0, 1, 2]
    assert [t.trained for t in record.trajectories] == [True, False, True]
    assert [t.judge_term for t in record.trajectories] == [0.0] * 3
    assert first.answer is made.answers[0]


def test_a_trained_answer_has_no_reason_and_every_other_has_one(configured):
    cuts = [whole(2), cut(6), whole(3)]
    assert reasons(group(configured(CUT), [0.0, 1.0, 2.0], cuts)) == [None, "truncated", None]
    assert reasons(group(configured(), [1.0, 1.0])) == ["zero_signal"] * 2


def test_one_answer_that_is_left_alone_has_nothing_to_be_compared_with(configured):
    made = group(configured(CUT), [0.0, 1.0, 2.0], [whole(2), cut(6), cut(6)])
    assert reasons(made) == ["zero_signal", "truncated", "truncated"]
    assert [t.trained for t in made.record([()] * len(made.answers)).trajectories] == [False] * 3


def test_masked_answers_do_not_touch_the_numbers_of_the_rest(configured):
    """The same live answers, with and without a masked one beside them."""
    alone = group(configured(CUT), [0.1, 0.7, 0.4], [whole(1), whole(2), whole(3)])
    beside = group(
        configured(CUT), [0.1, math.pi, 0.7, 0.4], [whole(1), cut(6), whole(2), whole(3)]
    )
    np.testing.assert_array_equal(beside.advantages[[0, 2, 3]], alone.advantages)
