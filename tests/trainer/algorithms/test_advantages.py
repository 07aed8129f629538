from __future__ import annotations

import torch

from trainer.algorithms.advantages import group_advantages, has_signal, overlong_penalty

ALL = torch.ones(4, dtype=torch.bool)


def test_mean_baseline():
    # mean 0.5: each reward minus that, and no division by the standard deviation
    rewards = torch.tensor([0.0, 0.0, 1.0, 1.0])
    assert group_advantages(rewards, ALL, "mean").tolist() == [-0.5, -0.5, 0.5, 0.5]


def test_leave_one_out_baseline():
    # the others of the first answer have mean 2, of the last (0 + 1 + 2) / 3 = 1
    rewards = torch.tensor([0.0, 1.0, 2.0, 3.0])
    expected = torch.tensor([0 - 2.0, 1 - 5 / 3, 2 - 4 / 3, 3 - 1.0])
    torch.testing.assert_close(group_advantages(rewards, ALL, "leave_one_out"), expected)


def test_masked_answers_leave_numerator_and_denominator():
    live = torch.tensor([True, False, True, True])
    # mean of 1, 2 and 6 is 3; the masked 100 touches nothing
    rewards = torch.tensor([1.0, 100.0, 2.0, 6.0])
    assert group_advantages(rewards, live, "mean").tolist() == [-2.0, 0.0, -1.0, 3.0]
    # others of the first: (2 + 6) / 2 = 4
    assert group_advantages(rewards, live, "leave_one_out").tolist() == [-3.0, 0.0, -1.5, 4.5]


def test_equal_rewards_carry_no_signal_and_give_exact_zeros():
    rewards = torch.full((4,), 0.1)
    assert not has_signal(rewards, ALL)
    assert group_advantages(rewards, ALL, "mean").tolist() == [0.0] * 4


def test_one_live_answer_carries_no_signal():
    live = torch.tensor([True, False, False, False])
    assert not has_signal(torch.tensor([1.0, 0.0, 0.0, 0.0]), live)
    assert not has_signal(torch.tensor([1.0, 0.0, 0.0, 0.0]), ~ALL)


def test_difference_only_among_masked_answers_is_no_signal():
    live = torch.tensor([True, True, True, False])
    assert not has_signal(torch.tensor([1.0, 1.0, 1.0, 0.0]), live)


def test_permuting_a_group_permutes_its_advantages():
    rewards = torch.tensor([0.3, 0.9, 0.1, 0.4])
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(
        group_advantages(rewards[order], ALL, "mean"),
        group_advantages(rewards, ALL, "mean")[order],
        rtol=0,
        atol=0,
    )


def test_overlong_penalty_falls_in_a_line_over_the_buffer():
    # buffer 4 before 16: zero to 12, then a quarter of 2.0 for each token
    lengths = torch.tensor([1, 12, 13, 14, 16])
    penalty = overlong_penalty(lengths, max_new_tokens=16, buffer_tokens=4, max_penalty=2.0)
    assert penalty.tolist() == [0.0, 0.0, -0.5, -1.0, -2.0]
